"""`leval-harness upload`: results on the Hugging Face Hub."""

from pathlib import Path

import click

from leval_border.errors import printable
from leval_harness.cli.output import EXISTING_FOLDER


@click.command(
    name="upload",
    epilog="Example: leval-harness upload results/quickstart --repo my-group/long-context-results",
)
@click.argument("folder", type=EXISTING_FOLDER)
@click.option("--repo", required=True, metavar="ORG/NAME", help="Data set repository to write to.")
@click.option("--public", is_flag=True, help="A repository that is created can be read by all.")
@click.option("--dry-run", is_flag=True, help="List the files; upload nothing.")
def command(folder: Path, repo: str, public: bool, dry_run: bool) -> None:
    """Upload FOLDER (results of a sweep, a page, cards) to a data set repository of the Hub.

    All files go into one commit, under the folder's name. Unfinished cells and hidden files stay.
    A text that holds something in the form of a credential stops the upload. Log in with `hf auth
    login`, or set HF_TOKEN.
    """
    from leval_harness.cards.upload import check_repository, files_to_upload, upload

    check_repository(repo)
    files = files_to_upload(folder)
    megabytes = sum((folder / path).stat().st_size for path in files) / 1e6
    if dry_run:
        click.echo("\n".join(printable(path.as_posix()) for path in files))
        click.echo(f"{len(files)} files, {megabytes:.1f} MB; nothing was uploaded", err=True)
        return
    address = upload(folder, files, repo, private=not public)
    click.echo(f"{len(files)} files, {megabytes:.1f} MB: {printable(address)}")
