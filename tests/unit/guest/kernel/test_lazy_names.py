"""Names that a cell may use without an import."""

from __future__ import annotations

import math
from typing import Any

from agent_tools.guest.kernel.lazy_names import LazyNames


def test_a_well_known_name_is_found_beside_a_deep_expression() -> None:
    namespace: dict[str, Any] = {}
    LazyNames(namespace).look_at(f"x = {'+'.join(['1'] * 1_500)}\nmath.floor(x)\nre = re.compile('')")
    assert namespace == {"math": math}
