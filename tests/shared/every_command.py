"""The commands of `leval-harness`, so that a new one is tested without a line."""

from collections.abc import Iterator

import click


def leaves(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Path and click command of everything that can be run."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    with click.Context(command) as context:
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from leaves(below, (*path, name))
