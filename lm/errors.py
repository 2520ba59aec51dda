"""A user's mistake, said in one line.

`UserError` is the one exception that stands for it: a command (`exit_status`) prints its message as
one line and ends with status 2.
"""

import errno
import os
import re
import sys

from safetensors import SafetensorError


class UserError(Exception):
    """A mistake in an argument or a file. The message is one line: where it is and what was
    expected.
    """


def exit_status(work, where=lambda: None):
    """Run `work()`, a command, and return its exit status: 0, or 2 after a mistake of the user's,
    told in one line on standard error.

    where(): what the line names where the error itself names no file.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that has not all characters
    try:
        work()
        return 0
    except (UserError, FloatingPointError) as error:
        message = str(error)
    except BrokenPipeError:  # whoever read the output wants no more of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        room = "; make room, and the same command goes on" if error.errno == errno.ENOSPC else ""
        message = f"{error.filename or where()}: {error.strerror or error}{room}"
    except SafetensorError as error:
        room = "; make room, and the same command goes on" if "No space left" in str(error) else ""
        message = f"{where()}: {error}{room}"
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search(r"out of memory|allocate memory", str(error)):
            raise
        message = (
            f"out of memory ({first_line(error)}); settings called rows or micro_rows say how much is held at a time"
        )
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def raise_user_error(message):
    """What an argparse parser's `error` is set to, so that its complaint is one line as well."""
    raise UserError(message)


def first_line(error):
    """The first line of an exception's message, at most 200 characters, or its kind where it has
    none.
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
