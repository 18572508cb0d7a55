"""``python -m grpo_cli``, and the command ``grpo``: the packages are imported under a handler."""

import os
import signal


def main() -> None:
    """Runs the command. Ctrl-C ends it in silence also while its packages are imported."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup ignores it
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from grpo_cli.commands.main import main as run

    run()


if __name__ == "__main__":
    main()
