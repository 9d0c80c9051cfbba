"""Where commands write: a file whole, a pipe or device as it is."""

import os
import stat
import threading

from leval_harness.output import write_or_print


def test_a_pipe_stays_a_pipe(tmp_path):
    """`--out /dev/stdout`, or `/dev/null` of the superuser, which a rename would replace."""
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()), daemon=True)
    reader.start()
    write_or_print("a table", pipe)
    reader.join(10)
    assert heard == ["a table"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
