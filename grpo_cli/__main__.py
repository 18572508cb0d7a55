"""``python -m grpo_cli``, and the command ``grpo``: its start and its end."""

import atexit
import gc
import os
import signal
import sys


def main() -> None:
    """Runs the command. Ctrl-C ends it in silence also while its packages are imported."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup ignores it
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    gc.disable()  # nothing that is imported is garbage; ``memory.settle`` starts it again
    # numpy's BLAS starts a thread per core, a third of numpy's import, and nothing here needs one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from grpo_cli.commands.main import ended_by
    from grpo_cli.commands.main import main as run

    try:
        run()
    except SystemExit as end:
        if isinstance(end.code, int):
            _leave(128 + ended_by[0] if ended_by else end.code)
        raise


def _leave(code: int) -> None:
    """Ends the process when everything is written and removed that has to be.

    Freeing all that was imported would be a tenth of the time that a small file takes.
    """
    atexit._run_exitfuncs()
    from grpo_cli.terminal.destination import standard_output

    results = standard_output()
    for stream in (results, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except ValueError:  # it is closed
            continue
        except OSError as error:  # Python's own end would try again, and exit with 120
            if not code and stream is results:
                sys.stderr.write(f"grpo: standard output: {error.strerror}\n")
                code = 3
    os._exit(code)


if __name__ == "__main__":
    main()
