"""`baton key`: makes an API key."""

from typing import Annotated

import typer

from baton import keys
from baton.cli.plain import fail, plain_errors


@plain_errors
def key(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose key it is.")],
    operator: Annotated[
        bool, typer.Option("--operator", help="It may see the whole fleet and all requests.")
    ] = False,
) -> None:
    """Make an API key for TENANT: the key, and the line by which routers know it."""
    made = keys.new_key()
    try:
        line = keys.line_of(made, keys.Owner(tenant, operator))
    except ValueError as error:
        fail(f"TENANT: {error}")
    typer.echo(made)
    typer.echo("the key is shown only now. Its line for the routers' --api-keys file:", err=True)
    typer.echo(line)
