# SPDX-License-Identifier: Apache-2.0
"""The plugin: its path, the copy that NCCL loaded, and its C functions (docs/control.md)."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import warnings
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar, Union, cast

from . import _elf

#: This process does not record, or not yet.
OFF = 1
#: An argument is invalid.
BAD = 2
#: A system call failed.
SYSTEM = 3

NAMES = ("libnccl-profiler-ncclscope.so", "libnccl_profiler_ncclscope.so")
#: The file that NCCL loads if no variable names a plugin.
DEFAULT = "libnccl-profiler.so"
# NCCL silently truncates a longer value (src/plugin/plugin_open.cc:37@v2.30.7-1).
VALUE_MAX = 254


class Error(Exception):
    """A function of the plugin or of this package failed."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        #: `OFF`, `BAD` or `SYSTEM`.
        self.code = code


_Function = TypeVar("_Function", bound=Callable[..., Any])


def errors_only(function: _Function) -> _Function:
    """A function of this package from which no other exception than `Error` comes: training that
    catches that is safe."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Error:
            raise
        except OSError as error:
            raise Error(SYSTEM, f"{function.__name__}: {error}") from error
        except Exception as error:
            raise Error(BAD, f"{function.__name__}: {error}") from error

    return cast(_Function, call)


@errors_only
def plugin_path() -> Path:
    """The path of the plugin that NCCL should load.

    This is the file that ``NCCLSCOPE_PLUGIN`` names, else the one in this package, else the one
    that the tool on ``PATH`` uses, else the newest build in the repository of this package.
    """
    named = os.environ.get("NCCLSCOPE_PLUGIN")
    if named:
        if not os.path.isfile(named):
            raise Error(SYSTEM, f"NCCLSCOPE_PLUGIN is {named}, which is not a file")
        found: Optional[Path] = Path(named)
    else:
        found = next(filter(None, map(_in_directories, _places())), None)
    if found is None:
        raise Error(
            SYSTEM,
            f"cannot find {NAMES[0]}: install a wheel that contains it, put ncclscope on PATH, or "
            "name the file in NCCLSCOPE_PLUGIN",
        )
    found = Path(os.path.abspath(found))
    fault = _elf.fault(found)
    if fault is not None:
        raise Error(SYSTEM, f"{found}, the plugin, {fault}")
    return found


def _places() -> list[list[Path]]:
    """Directories that may contain the plugin; from one list the newest plugin is used."""
    package = Path(__file__).parent
    places = [[package]]
    tool = shutil.which("ncclscope")
    if tool is not None:
        here = Path(os.path.realpath(tool)).parent
        places += [[here], [here / "../lib"]]
    if len(package.parents) > 2 and (package.parents[2] / "Cargo.toml").is_file():
        target = Path(os.environ.get("CARGO_TARGET_DIR") or package.parents[2] / "target")
        places.append([target / "release", target / "debug"])
    return places


def _in_directories(directories: list[Path]) -> Optional[Path]:
    files = [directory / name for directory in directories for name in NAMES]
    files = [file for file in files if file.is_file()]
    return max(files, key=lambda file: file.stat().st_mtime_ns, default=None)


def variables(before: Optional[str] = None) -> dict[str, str]:
    """Variables with which every release of NCCL loads the plugin: a bare name, and its directory
    at the head of the loader's path (``docs/loading.md``): ``before``, else this process's."""
    path = plugin_path()
    folder, name = path.parent, path.name
    if name != NAMES[0] or not _can_be_listed(folder):
        own = _folder_of_its_own(path)
        if own is None:
            return _by_path(path)
        folder, name = own, NAMES[0]
    there = os.environ.get("LD_LIBRARY_PATH", "") if before is None else before
    if there.split(":")[0] != str(folder):
        there = f"{folder}:{there}" if there else str(folder)
    return {"NCCL_PROFILER_PLUGIN": name, "LD_LIBRARY_PATH": there}


def chain() -> dict[str, str]:
    """Variables that keep another tool's plugin that ``NCCL_PROFILER_PLUGIN`` names: ours calls it
    too (``docs/chain.md``). ``NCCLSCOPE_CHAIN`` is not changed if it is set."""
    told = os.environ.get("NCCL_PROFILER_PLUGIN") or ""
    ours = ("", "ncclscope", DEFAULT, *NAMES)
    # NCCL accepts any prefix of this word, and `none` names no file.
    is_word = told.lower() == "none" or "STATIC_PLUGIN".startswith(told.upper())
    is_ours = os.path.basename(told) in ours or told == os.environ.get("NCCLSCOPE_PLUGIN")
    if is_word or is_ours or os.environ.get("NCCLSCOPE_CHAIN"):
        return {}
    return {"NCCLSCOPE_CHAIN": told}


def _by_path(path: Path) -> dict[str, str]:
    length = len(os.fsencode(path))
    if length > VALUE_MAX:
        raise Error(
            SYSTEM,
            f"the plugin's path has {length} bytes, and NCCL truncates it to {VALUE_MAX}: copy "
            f"{NAMES[0]} to a shorter path and name it in NCCLSCOPE_PLUGIN",
        )
    return {"NCCL_PROFILER_PLUGIN": str(path)}


def _can_be_listed(folder: Path) -> bool:
    """True if the loader reads the directory as one entry, and finds no other library in it."""
    if any(letter in str(folder) for letter in ":;$"):
        return False
    try:
        files = os.listdir(folder)
    except OSError:
        return False
    return not [f for f in files if f not in NAMES and (f.endswith(".so") or ".so." in f)]


def _folder_of_its_own(path: Path) -> Optional[Path]:
    """A directory of the user that contains only a link to the plugin."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    folder = Path(cache, "ncclscope/plugin", digest)
    new = folder / f"{NAMES[0]}.{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
        # The job would load a file that other users can write.
        if about.st_uid != os.geteuid() or about.st_mode & 0o022:
            return None
        new.symlink_to(path)
        new.rename(folder / NAMES[0])
    except OSError:
        return None
    return folder if _can_be_listed(folder) else None


_HangListener = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)
_listeners: list[Any] = []


class Library:
    """The C functions of a loaded plugin."""

    def __init__(self, path: str, mode: int = os.RTLD_LOCAL | os.RTLD_NOW) -> None:
        self.path = path
        try:
            self.c = ctypes.CDLL(path, mode=mode)
            self._find()
        except (OSError, AttributeError, ValueError) as error:
            raise Error(SYSTEM, f"{path} is not a plugin of ncclscope: {error}") from None
        if "/" not in path:
            # The loader found the library on its search path.
            self.path = _mapped_at(self.address("ncclscope_version")) or path

    def _find(self) -> None:
        self.c.ncclscope_version.restype = ctypes.c_char_p
        self.c.ncclscope_error.restype = ctypes.c_char_p
        text, number = ctypes.c_char_p, ctypes.c_uint64
        self._start = self._function("ncclscope_start", text)
        self._stop = self._function("ncclscope_stop")
        self._dump = self._function("ncclscope_dump", text)
        self._mark = self._function("ncclscope_mark", text)
        self._set_step = self._function("ncclscope_set_step", number)
        self._simulate_hang = self._function("ncclscope_simulate_hang", ctypes.c_double)
        self._on_hang = self._function("ncclscope_on_hang", ctypes.c_void_p, ctypes.c_void_p)
        self._set_role = self._function("ncclscope_set_role", number, text)
        self._ask = self.c.ncclscope_ask_external_id
        self._ask.argtypes = [ctypes.c_void_p]
        self._ask.restype = None

    def _function(self, name: str, *types: type) -> Callable[..., None]:
        function = getattr(self.c, name)
        function.argtypes = types
        function.restype = ctypes.c_int

        def call(*args: object) -> None:
            code = function(*args)
            if code != 0:
                raise Error(code, self.c.ncclscope_error().decode(errors="replace"))

        return call

    def address(self, name: str) -> int:
        """The address of a function of the plugin, for other C code."""
        return ctypes.cast(getattr(self.c, name), ctypes.c_void_p).value or 0

    def version(self) -> str:
        return str(self.c.ncclscope_version().decode())

    def start(self, options: str) -> None:
        self._start(_text(options))

    def stop(self) -> None:
        self._stop()

    def is_started(self) -> bool:
        return bool(self.c.ncclscope_is_started())

    def begin(self, name: str) -> bool:
        """Begins a window and marks it; false if the caller must not end the window."""
        if self.is_started():
            return False
        try:
            self.mark(name)
        except Error as error:
            # There is no communicator yet. If the first one starts a recording by itself, the end
            # of this window would prevent that.
            if error.code != OFF or not is_off_at_first():
                return False
        self.start("")
        return True

    def dump(self, path: Optional[str]) -> None:
        self._dump(None if path is None else os.fsencode(path))

    def mark(self, name: str) -> None:
        self._mark(_text(name))

    def set_step(self, step: int) -> None:
        self._set_step(_unsigned(step, "step"))

    def set_role(self, comm_hash: int, role: str) -> None:
        self._set_role(_unsigned(comm_hash, "comm_hash"), _text(role))

    def simulate_hang(self, seconds: float) -> None:
        self._simulate_hang(seconds)

    def on_hang(self, function: Optional[Callable[[str], None]]) -> None:
        if function is None:
            self._on_hang(None, None)
            return

        def called(json: bytes, _user: Optional[int]) -> None:
            function(json.decode(errors="replace"))

        callback = _HangListener(called)
        # The plugin may be calling the previous listener at this moment, so listeners are never
        # freed.
        _listeners.append(callback)
        self._on_hang(ctypes.cast(callback, ctypes.c_void_p), None)

    def ask_external_id(self, function: Optional[int]) -> None:
        """API calls get their id, a u64, from the C function at this address; None: no longer."""
        self._ask(function)


class NoPlugin(Library):
    """Stands for the plugin where NCCL loads none: nothing happens."""

    def __init__(self) -> None:
        self.path = ""

    def address(self, name: str) -> int:
        return 0

    def version(self) -> str:
        return ""

    def start(self, options: str) -> None:
        pass

    def stop(self) -> None:
        pass

    def is_started(self) -> bool:
        return False

    def begin(self, name: str) -> bool:
        return False

    def dump(self, path: Optional[str]) -> None:
        pass

    def mark(self, name: str) -> None:
        pass

    def set_step(self, step: int) -> None:
        pass

    def set_role(self, comm_hash: int, role: str) -> None:
        pass

    def simulate_hang(self, seconds: float) -> None:
        pass

    def on_hang(self, function: Optional[Callable[[str], None]]) -> None:
        pass

    def ask_external_id(self, function: Optional[int]) -> None:
        pass


def is_off_at_first() -> bool:
    """True if nothing is recorded until a request to start."""
    return os.environ.get("NCCLSCOPE_START", "").strip().lower() in ("off", "0")


def _text(text: str) -> bytes:
    if "\0" in text:
        raise Error(BAD, f"{text!r}: a text must not contain a zero byte")
    return text.encode()


def _unsigned(number: int, what: str) -> int:
    if not 0 <= number < 1 << 64:
        raise Error(BAD, f"{what} {number}: expected 0 to 2**64 - 1")
    return number


_found: Optional[Library] = None
_opened: Optional[Library] = None
#: The value of NCCL's variable for which `_opened` was opened.
_told: Optional[str] = None
_has_warned = False


def library() -> Library:
    """The plugin that NCCL loaded; before that, the one that it will load."""
    global _found, _opened, _told
    if _found is not None:
        return _found
    told = os.environ.get("NCCL_PROFILER_PLUGIN") or ""
    if _opened is not None and told == _told:
        return _opened
    for path in _loaded(told):
        # Of several copies, NCCL's is the one that this module did not open.
        if _opened is None or not _is_same(path, _opened.path):
            try:
                _found = Library(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            except Error:
                continue
            return _found
    if _opened is None:
        _opened = _to_be_loaded(told)
        _told = told
    return _opened


def acting(required: bool = False) -> Library:
    """`library`, or what stands for it if NCCL loads no plugin, with one warning for the process:
    a script that records runs on a machine without the plugin, too."""
    global _has_warned
    try:
        return library()
    except (Error, OSError) as error:
        if required:
            raise
        if not _has_warned:
            _has_warned = True
            warnings.warn(f"NCCL is not recorded: {error}", stacklevel=4)
        return NoPlugin()


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return one == other


# : The suffix of the name of a mapped file that was replaced or removed.
_DELETED = " (deleted)"


def _maps() -> list[tuple[int, int, str]]:
    """The mapped files: first address, the one behind the last, and name."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            addresses, _, rest = line.rstrip("\n").partition(" ")
            first, _, last = addresses.partition("-")
            name = "/" + rest.partition("/")[2]
            found.append((int(first, 16), int(last, 16), name))
    return found


def _mapped_at(address: int) -> Optional[str]:
    """The mapped file that an address lies in."""
    names = (name for first, last, name in _maps() if first <= address < last)
    name = next(names, None)
    return name[: -len(_DELETED)] if name and name.endswith(_DELETED) else name


def _loaded(told: str) -> list[str]:
    """Mapped files that have the plugin's name, or the name in NCCL's variable."""
    names = {*NAMES, os.path.basename(told) or NAMES[0]}
    found: dict[str, None] = {}
    for _, _, path in _maps():
        # The loader knows a library by the name under which it was opened: an upgrade in place
        # changes nothing.
        is_deleted = path.endswith(_DELETED)
        path = path[: -len(_DELETED)] if is_deleted else path
        if os.path.basename(path) in names and (is_deleted or os.path.isfile(path)):
            found[path] = None
    return list(found)


def _to_be_loaded(told: str) -> Library:
    """Opens the file that NCCL will open: the same file has the same state."""
    if told.lower() == "none":
        raise Error(OFF, f"NCCL loads no plugin: NCCL_PROFILER_PLUGIN is {told}")
    if "/" in told:
        return Library(told)
    names = [told, f"libnccl-profiler-{told}.so"] if told else [DEFAULT]
    for name in names:
        try:
            return Library(name)
        except Error:
            continue
    if told == NAMES[0]:
        # The loader's path was reset. NCCL finds a loaded library by its SONAME.
        return Library(str(plugin_path()))
    raise Error(
        OFF,
        "NCCL loads no plugin: before the first communicator, call ncclscope.load() or set the "
        "variables that `python -m ncclscope --env` prints",
    )


@errors_only
def load(output: Union[str, os.PathLike[str], None] = None) -> Library:
    """See `ncclscope.load`."""
    if not _loaded(NAMES[0]):
        # A loaded library is found by its SONAME, whatever the loader's path was at the start.
        Library(str(plugin_path()))
    os.environ.update(chain())
    # The path is for processes that this process starts.
    os.environ.update(variables())
    os.environ["NCCL_PROFILER_PLUGIN"] = NAMES[0]
    if output is not None:
        os.makedirs(output, exist_ok=True)
        os.environ["NCCLSCOPE_DIR"] = os.path.abspath(output)
    return library()
