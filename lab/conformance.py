# SPDX-License-Identifier: BSD-2-Clause
"""Runs rdma-core's own tests and says what became of each, as a line of JSON.

    conformance.py LIMIT [FILE ...]

LIMIT is the time in seconds that one test may take. Each file has a process of
its own; where a test hangs or takes that process down, the next one goes on
behind it. What the tests themselves print goes to standard error.
"""

import glob
import json
import os
import re
import select
import signal
import sys
import time
import traceback
import unittest
from importlib.machinery import SourceFileLoader

TESTS = '/usr/share/rdma-core/tests'


class Result(unittest.TestResult):
    """Keeps the worst outcome of a test, and why."""

    def __init__(self):
        super().__init__()
        self.outcome, self.reason = 'passed', ''

    def worse(self, outcome, reason):
        if self.outcome in ('passed', 'skipped'):
            self.outcome, self.reason = outcome, reason

    def addSkip(self, test, reason):
        self.worse('skipped', reason)

    def addExpectedFailure(self, test, err):
        pass

    def addUnexpectedSuccess(self, test):
        self.worse('failed', 'passed, and should not')

    def addFailure(self, test, err):
        self.worse('failed', last_line(err))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.worse('failed', last_line(err))


def last_line(err):
    text = ''.join(traceback.format_exception_only(err[0], err[1])).strip()
    return text.splitlines()[0] if text else err[0].__name__


def flatten(suite):
    for t in suite:
        if isinstance(t, unittest.TestSuite):
            yield from flatten(t)
        else:
            yield t


def child(tests, out):
    """Runs tests; before each one its number goes out, then what became of it."""
    os.setsid()
    os.dup2(2, 1)
    for i, t in tests:
        out.write('%d\n' % i)
        out.flush()
        r = Result()
        unittest.TestSuite([t])(r)
        out.write(json.dumps([r.outcome, r.reason]) + '\n')
        out.flush()
    out.flush()
    os._exit(0)


def lines(fd, limit):
    """Yields lines, and None when there was none for so long."""
    buf = b''
    while True:
        ready, _, _ = select.select([fd], [], [], limit)
        if not ready:
            yield None
            return
        b = os.read(fd, 65536)
        if not b:
            return
        buf += b
        while b'\n' in buf:
            line, buf = buf.split(b'\n', 1)
            yield line.decode()


def reap(pid, patience=5):
    """Returns the status of a process that was killed, None if it does not end."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    return None


def run(tests, limit):
    """Yields number, outcome and reason of each test."""
    while tests:
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(r)
            child(tests, os.fdopen(w, 'w'))
        os.close(w)
        now, hung = None, False
        for line in lines(r, limit):
            if line is None:
                hung = True
            elif line.startswith('['):
                yield (now, *json.loads(line))
                now = None
            else:
                now = int(line)
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        status = reap(pid)
        os.close(r)
        if now is None:
            return
        if status is None:
            why = 'no end within %d s, and its process cannot be killed: it waits in the kernel' % limit
        elif hung:
            why = 'no end within %d s' % limit
        else:
            why = 'took its process down: signal %d' % (status & 127)
        yield now, 'failed', why
        tests = [(i, t) for i, t in tests if i > now]


def huge_pages(count):
    """Sets aside pages of 2 MiB, as far as there is memory for them: tests without them are skipped."""
    try:
        with open('/proc/sys/vm/nr_hugepages', 'w') as f:
            f.write(str(count))
    except OSError as e:
        print('no huge pages: %s' % e, file=sys.stderr)


def say(**what):
    print(json.dumps(what), flush=True)


def main():
    limit = int(sys.argv[1])
    files = sys.argv[2:]
    sys.path.insert(0, TESTS)
    os.chdir(os.path.dirname(TESTS))
    from args_parser import parser
    sys.argv[1:] = []
    parser.parse_args()
    if os.environ.get('DEVXLAB_PLACE') == 'lab':
        huge_pages(64)
    SourceFileLoader('tests', TESTS + '/__init__.py').load_module()
    lib = glob.glob('/usr/lib/*/libibverbs.so.1.*')
    say(rdma_core=re.sub(r'.*\.so\.1\.\d+\.', '', lib[0]) if lib else 'unknown', kernel=os.uname().release)
    for path in sorted(glob.glob(TESTS + '/test_*.py')):
        name = os.path.basename(path)[:-3]
        if files and name not in files:
            continue
        tests = list(enumerate(flatten(unittest.defaultTestLoader.loadTestsFromName('tests.' + name))))
        say(file=name, tests=len(tests))
        ids = {i: t.id().removeprefix('tests.' + name + '.') for i, t in tests}
        for i, outcome, reason in run(tests, limit):
            say(file=name, test=ids[i], outcome=outcome, reason=reason)
    say(done=True)


main()
