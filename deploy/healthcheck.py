"""Asks a calserve whether it is well: exit code 0 when it answers 200, 1 for anything else.

`python healthcheck.py [URL]`; without one, `$CALSERVE_HEALTH_URL`, else /health/live on port 8000 of this machine.
/health/live: a supervisor should restart the process when it fails. /health/ready: send traffic only while it holds.
Only the standard library, so that the image needs no other tool.
"""

import os
import sys
import urllib.error
import urllib.request

DEFAULT_URL = "http://127.0.0.1:8000/health/live"
# The server gives its engine five seconds to answer before it calls itself stuck.
TIMEOUT_S = 6.0


def check(url: str) -> tuple[bool, str]:
    """Whether `url` answers 200, and what it said."""
    # No proxy stands between a container and itself, whatever the environment says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            return answer.status == 200, answer.read(500).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        return False, f"{error.code} {error.read(500).decode('utf-8', 'replace')}"
    except (OSError, ValueError) as error:
        return False, str(error)


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CALSERVE_HEALTH_URL", DEFAULT_URL)
    is_well, said = check(given)
    print(said)
    sys.exit(0 if is_well else 1)
