"""Rules of who may do what, on brokers that have an authorizer."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)


def forbid(bootstrap: str, operation: AclOperation, resources: Iterable[tuple[ResourceType, str]]) -> None:
    """Let everybody do all with these resources but that."""
    to_all = ResourcePatternType.LITERAL, "User:ANONYMOUS", "*"
    rules = [
        AclBinding(resource, name, *to_all, one, permission)
        for resource, name in resources
        for one, permission in (
            (AclOperation.ALL, AclPermissionType.ALLOW),
            (operation, AclPermissionType.DENY),
        )
    ]
    client = AdminClient({"bootstrap.servers": bootstrap})
    for made in client.create_acls(rules).values():
        made.result()
