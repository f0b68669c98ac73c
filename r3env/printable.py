"""Make foreign text safe to print: show what would steer a terminal or turn the direction of a line."""

import logging
import re

# Control characters but tabs and line ends; marks of direction; characters that are nothing to see; half characters.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)


def printable(text: str) -> str:
    r"""Return a text with an escape, such as `\x1b` or `\u202e`, in place of each character that is nothing to see."""
    return _INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class PrintableFormatter(logging.Formatter):
    """Writes what is logged as `printable` has it: warnings quote rows, answers and other processes' errors."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text."""
        return printable(super().format(record))
