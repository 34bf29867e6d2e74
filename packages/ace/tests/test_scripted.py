from concurrent.futures import ThreadPoolExecutor

import pytest
from ace.completion import Completion, Message, Request, failed
from ace.scripted import UNKNOWN, LessonBackend, ScriptedBackend

FACTS = {
    "What is the capital of Peru?": "The capital of Peru is Lima.",
    "What is the capital of Chad?": "The capital of Chad is N'Djamena.",
}
PERU, CHAD = FACTS


def ask(*contents, **more):
    return Request(tuple(Message("user", content) for content in contents), **more)


def test_tokens_are_words_and_texts_are_cut_as_a_models_are():
    backend = ScriptedBackend(lambda request: "one two\n three\tfour. END five")
    plain, stopped, cut, both = backend.complete(
        [
            ask("a b", "c"),
            ask("", stop=("?", "END")),
            ask("x", max_tokens=3),
            ask("x", max_tokens=2, stop=(" three",)),
        ]
    )
    assert plain == Completion("one two\n three\tfour. END five", 3, 6, "stop")
    assert stopped == Completion("one two\n three\tfour. ", 0, 4, "stop")
    assert cut == Completion("one two\n three", 1, 3, "length")
    assert both == Completion("one two\n", 1, 2, "stop")
    assert backend.count_tokens("a  b\nc") == 3
    assert backend.complete([ask("x", max_tokens=0)])[0] == Completion("", 1, 0, "length")


def test_completions_are_handed_on_and_calls_counted_in_every_thread():
    backend = ScriptedBackend(lambda request: failed(request.messages[0].content))
    with ThreadPoolExecutor(8) as threads:
        batches = list(threads.map(lambda i: backend.complete([ask(str(i)), ask("z")]), range(100)))
    assert [batch[0].error for batch in batches] == [str(i) for i in range(100)]
    assert backend.calls == 200


@pytest.mark.parametrize(
    ("contents", "answer"),
    [
        ((PERU,), UNKNOWN),
        ((f"Facts: {FACTS[PERU]}", f"Q: {PERU}"), FACTS[PERU]),
        ((f"{FACTS[PERU]} {PERU}",), FACTS[PERU]),
        ((FACTS[PERU], CHAD), UNKNOWN),
        ((FACTS[PERU], PERU, "Another question?"), UNKNOWN),
        ((FACTS[PERU] + FACTS[CHAD], f"{PERU} Lima. {CHAD}"), FACTS[CHAD]),
        ((FACTS[PERU] + FACTS[CHAD], f"{CHAD} N. {PERU}"), FACTS[PERU]),
        ((FACTS[PERU] + FACTS[CHAD], f"{PERU} {CHAD} {PERU}"), FACTS[PERU]),
    ],
)
def test_question_is_answered_only_with_its_fact_in_the_prompt(contents, answer):
    assert LessonBackend(FACTS).complete([ask(*contents)])[0].text == answer


def test_longest_of_questions_that_end_together_counts():
    backend = LessonBackend({"where?": "Here.", "And where?": "There."})
    assert backend.complete([ask("Here. There. And where?")])[0].text == "There."


def test_reflector_writes_the_fact_as_lesson():
    backend = LessonBackend(FACTS, reflects=lambda request: "Lesson:" in request.messages[-1].content)
    assert backend.complete([ask(f"{PERU} Lesson:"), ask("Lesson:"), ask(PERU)])[0].text == FACTS[PERU]
    assert [answer.text for answer in backend.complete([ask("Lesson:"), ask(PERU)])] == [UNKNOWN, UNKNOWN]


def test_online_accuracy_is_zero_once_and_a_half_twice():
    """Predict first, learn after: each fact is unknown the first time and known the second."""
    backend = LessonBackend(FACTS, reflects=lambda request: request.messages[0].role == "system")
    learned, right = "", []
    for question in [*FACTS, *FACTS]:
        right.append(backend.complete([ask(learned, question)])[0].text == FACTS[question])
        learned += backend.complete([Request((Message("system", "Reflect."), Message("user", question)))])[0].text
    assert right == [False, False, True, True]
