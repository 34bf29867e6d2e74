"""A model for tests that writes the JSON of the paper's roles, and knows an entity's value only from its prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

UNKNOWN = "unknown"


def json_model(values: Mapping[str, str]) -> Callable[[dict[str, Any]], str]:
    """Return the answer to the body of a request.

    The Generator says an entity's value if its prompt holds the lesson "ENTITY means VALUE", and relies on the bullet
    that says so. The Reflector writes that lesson if it is told the correct answer. The Curator adds the lesson.

    Args:
        values: entity -> value. A question names one of them.
    """

    def answer(body: dict[str, Any]) -> str:
        system, asked = body["messages"][0]["content"], body["messages"][-1]["content"]
        if '"operations"' in system:
            lesson = re.search(r"key_insight: (.+ means .+)", asked)
            adds = [{"type": "ADD", "section": "FORMULAS & CALCULATIONS", "content": lesson[1]}] if lesson else []
            return json.dumps({"reasoning": "", "operations": adds})
        entity = next((name for name in values if name in asked), None)
        if '"bullet_tags"' in system:
            target = re.search(r"CORRECT ANSWER\n(.+)", asked)
            used = re.findall(r"^\[(\w+-\d{5})\]", asked, re.MULTILINE)
            insight = f"{entity} means {target[1]}" if target else "look again"
            tags = [{"id": name, "tag": "helpful"} for name in used]
            return json.dumps({"key_insight": insight, "bullet_tags": tags})
        assert '"final_answer"' in system
        if entity is None or f"{entity} means {values[entity]}" not in system + asked:
            return json.dumps({"reasoning": "", "bullet_ids": [], "final_answer": UNKNOWN})
        ids = re.findall(rf"\[(\w+-\d{{5}})\].*:: {entity} means", system)
        return json.dumps({"reasoning": "", "bullet_ids": ids, "final_answer": values[entity]})

    return answer
