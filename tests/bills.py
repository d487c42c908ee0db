"""Bills of materials, held against CycloneDX's own schema."""

from __future__ import annotations


def fits_schema(bill: str) -> bool:
    # imported here: the schema's library compiles grammars for seconds, in each worker
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
