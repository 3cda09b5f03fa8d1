# SPDX-License-Identifier: Apache-2.0
"""The package without torch and without NCCL. NCCLSCOPE_PLUGIN names the plugin, which has the tool
beside it."""

import contextlib
import ctypes
import errno
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import warnings
from pathlib import Path
from unittest import mock

import ncclscope
from ncclscope import _kineto, _plugin, _tool

PLUGIN = os.environ["NCCLSCOPE_PLUGIN"]


def python(*args: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Runs a Python that has the package; of ours and NCCL's variables only these are set."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("NCCL")}
    return subprocess.run(
        [sys.executable, *args], env={**kept, **env}, capture_output=True, text=True, check=False
    )


def made_up_plugin() -> bytes:
    """A file that looks like a plugin as long as nothing loads it."""
    symbol = b"\0ncclProfiler_v1\0"
    with open(sys.executable, "rb") as own:
        head = own.read(32)
    sizes = struct.pack("=QQIHHHHHH", 64, 0, 0, 64, 56, 1, 64, 0, 0)
    length = 64 + 56 + len(symbol)
    return head + sizes + struct.pack("=IIQQQQQQ", 1, 5, 0, 0, 0, length, length, 4096) + symbol


class Finding(unittest.TestCase):
    def test_the_variable_names_the_plugin(self) -> None:
        self.assertEqual(ncclscope.plugin_path(), Path(PLUGIN))
        with mock.patch.dict(os.environ, NCCLSCOPE_PLUGIN="/nowhere.so"):
            with self.assertRaisesRegex(ncclscope.Error, "/nowhere.so, which is not a file"):
                ncclscope.plugin_path()

    def test_what_is_no_whole_plugin_of_this_machine_is_refused(self) -> None:
        whole = made_up_plugin()
        other = whole[:18] + b"\xf3" + whole[19:]
        cases = (
            (whole[:-1], f"is truncated to {len(whole) - 1} of {len(whole)} bytes"),
            (whole[:70], "is truncated to 70 of 120 bytes"),
            (whole.replace(b"ncclProfiler", b"snd_pcm_open"), "is not an NCCL profiler plugin"),
            (other, "is for another kind of machine"),
            (b"#!/bin/sh\n" * 9, "is not a shared library"),
            (b"", "is not a shared library"),
        )
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "plugin.so")
            for data, says in cases:
                file.write_bytes(data)
                for what in ("--env", "--plugin-path"):
                    done = python("-m", "ncclscope", what, NCCLSCOPE_PLUGIN=str(file))
                    self.assertEqual((done.returncode, done.stdout), (4, ""))
                    self.assertIn(f"{file}, the plugin, {says}", done.stderr)

    def test_it_lies_beside_the_tool_on_path(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (tool, plugin) = (Path(folder, "bin/ncclscope"), Path(folder, "lib", _plugin.NAMES[0]))
            for file in (tool, plugin):
                file.parent.mkdir()
                file.write_bytes(made_up_plugin())
                file.chmod(0o755)
            where = {"PATH": f"{tool.parent}:{os.environ['PATH']}", "NCCLSCOPE_PLUGIN": ""}
            with mock.patch.dict(os.environ, where):
                self.assertEqual(ncclscope.plugin_path().resolve(), plugin.resolve())
                self.assertEqual(_tool.tool_path(str(plugin)).resolve(), tool.resolve())

    def test_a_verb_runs_the_tool(self) -> None:
        done = python("-m", "ncclscope", "simulate", "--list", NCCLSCOPE_PLUGIN=PLUGIN)
        self.assertEqual((done.returncode, "host-stuck" in done.stdout), (0, True), done.stderr)
        done = python("-m", "ncclscope", "report", "/nowhere", NCCLSCOPE_PLUGIN=PLUGIN)
        self.assertEqual(done.returncode, 3, done.stderr)
        done = python("-m", "ncclscope", "report", "/nowhere", NCCLSCOPE_PLUGIN="/nowhere.so")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (4, 1), done.stderr)

    def test_the_command_of_pip_does_not_find_itself(self) -> None:
        script = "import sys; from ncclscope.__main__ import command; sys.exit(command())"
        with tempfile.TemporaryDirectory() as folder:
            (plugin, command) = (Path(folder, "a/plugin.so"), Path(folder, "ncclscope"))
            plugin.parent.mkdir()
            plugin.write_bytes(made_up_plugin())
            command.write_text(f"#!{sys.executable}\n{script}\n")
            command.chmod(0o755)
            where = {"PATH": folder, "NCCLSCOPE_PLUGIN": str(plugin)}
            done = python("-c", script, "--version", **where)
            self.assertEqual((done.returncode, done.stdout), (4, ""), done.stderr)
            self.assertIn("cannot find the program ncclscope", done.stderr)
            # If its directory comes later on the PATH, the tool is found, and its exit codes are
            # passed on.
            where["PATH"] += f":{Path(PLUGIN).parent}"
            done = python("-c", script, "--version", **where)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertRegex(done.stdout, r"^ncclscope \d+\.\d+")
            done = python("-c", script, "report", "/nowhere", **where)
            self.assertEqual(done.returncode, 3, done.stderr)

    def test_a_shell_reads_the_variables(self) -> None:
        with tempfile.TemporaryDirectory(prefix="it's ") as folder:
            runs = Path(folder, "runs")
            done = python("-m", "ncclscope", "--env", "-o", str(runs), NCCLSCOPE_PLUGIN=PLUGIN)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            script = done.stdout + 'printf "%s|%s" "$NCCL_PROFILER_PLUGIN" "$NCCLSCOPE_DIR"'
            said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
            self.assertEqual(said.stdout, f"{_plugin.NAMES[0]}|{runs}")
            self.assertTrue(runs.is_dir())
        done = python("-m", "ncclscope", "--plugin-path", NCCLSCOPE_PLUGIN=PLUGIN)
        self.assertEqual(done.stdout, f"{PLUGIN}\n")
        done = python("-m", "ncclscope", "--plugin-path", NCCLSCOPE_PLUGIN="/nowhere.so")
        self.assertEqual((done.returncode, done.stdout), (4, ""))
        self.assertIn("ncclscope: NCCLSCOPE_PLUGIN is", done.stderr)


    def test_another_tools_plugin_is_kept(self) -> None:
        cases = (
            ("/opt/libother.so", "", "/opt/libother.so"),
            ("/opt/libother.so", "x", ""),
            ("none", "", ""),
            ("static", "", ""),
            (_plugin.NAMES[0], "", ""),
        )
        for told, chain, kept in cases:
            env = {"NCCL_PROFILER_PLUGIN": told, "NCCLSCOPE_CHAIN": chain}
            done = python("-m", "ncclscope", "--env", NCCLSCOPE_PLUGIN=PLUGIN, **env)
            line = f"export NCCLSCOPE_CHAIN={kept}\n"
            self.assertEqual(line in done.stdout, kept != "", done.stdout)
            self.assertEqual(f"names {kept}: it gets" in done.stderr, kept != "", done.stderr)


class Loading(unittest.TestCase):
    """Variables for every release of NCCL: a bare name, and a directory in the loader's path."""

    def of(self, folder: Path, name: str = _plugin.NAMES[0], **env: str) -> tuple[str, str]:
        folder.mkdir(exist_ok=True)
        plugin = folder / name
        plugin.write_bytes(made_up_plugin())
        script = (
            'eval "$($0 -m ncclscope --env)"; '
            'printf "%s|%s" "$NCCL_PROFILER_PLUGIN" "$LD_LIBRARY_PATH"'
        )
        kept = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
        own = {"XDG_CACHE_HOME": str(folder.parent / "cache"), "NCCLSCOPE_PLUGIN": str(plugin)}
        command = ["sh", "-c", script, sys.executable]
        done = subprocess.run(
            command, env={**kept, **own, **env}, capture_output=True, text=True, check=True
        )
        value, _, listed = done.stdout.partition("|")
        return value, listed

    def test_what_the_loaders_path_had_stays(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name, "a folder")
            self.assertEqual(self.of(folder), (_plugin.NAMES[0], str(folder)))
            told = self.of(folder, LD_LIBRARY_PATH="/x y:/z")
            self.assertEqual(told, (_plugin.NAMES[0], f"{folder}:/x y:/z"))

    def test_other_folders_get_a_link_in_one_of_the_users(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            Path(name, "mixed").mkdir()
            Path(name, "mixed/libcrypto.so.3").touch()
            places = (("colon:", _plugin.NAMES[0]), ("mixed", _plugin.NAMES[0]), ("odd", "x.so"))
            for folder, file in places:
                for _ in range(2):
                    value, listed = self.of(Path(name, folder), file)
                    self.assertTrue(listed.startswith(f"{name}/cache/ncclscope/plugin/"), listed)
                    link = Path(listed, value).resolve()
                    self.assertEqual(link, Path(name, folder, file).resolve())
            shutil.rmtree(Path(name, "cache"))
            Path(name, "cache").touch()
            odd = str(Path(name, "odd/x.so"))
            self.assertEqual(self.of(Path(name, "odd"), "x.so"), (odd, ""))


class Calling(unittest.TestCase):
    """Each test has a process of its own, because a loaded library stays."""

    def says(self, code: str, **env: str) -> str:
        done = python("-c", f"import ncclscope, ctypes, os\n{code}", **env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def refuses(self, call: str, **env: str) -> str:
        return self.says(
            f"try: {call}\nexcept ncclscope.Error as e: print(e.code, e)\nelse: print('done')",
            **env,
        )

    def test_without_the_variable_nccl_loads_no_plugin(self) -> None:
        for told in ("", "none"):
            call = "ncclscope.start(required=True)"
            said = self.refuses(call, NCCL_PROFILER_PLUGIN=told)
            self.assertIn(f"{ncclscope.OFF} NCCL loads no plugin", said)

    def test_without_a_plugin_nothing_happens_and_one_warning_says_so(self) -> None:
        code = """if True:
            with ncclscope.window(sample=2):
                ncclscope.mark("here")
            for _ in range(2):
                ncclscope.start(seconds=1), ncclscope.stop(), ncclscope.set_step(3)
                ncclscope.dump("/nowhere/x.nscope"), ncclscope.set_role(1, "tp")
                ncclscope.on_hang(print), ncclscope.simulate_hang(1)
            print(ncclscope.is_started(), repr(ncclscope.version()))
        """
        for told in ("", "none", "/nowhere.so", "nowhere"):
            done = python("-c", f"import ncclscope\n{code}", NCCL_PROFILER_PLUGIN=told)
            self.assertEqual((done.returncode, done.stdout), (0, "False ''\n"), done.stderr)
            self.assertEqual(done.stderr.count("UserWarning: NCCL is not recorded"), 1, done.stderr)

    def test_only_its_own_exception_leaves_the_package(self) -> None:
        env = {"NCCL_PROFILER_PLUGIN": PLUGIN}
        for call in (
            "mark('\\ud800')",
            "mark(None)",
            "set_step('three')",
            "set_role(1, 2)",
            "simulate_hang('x')",
            "start(seconds='x')",
            "dump(7)",
            "start(no_such_word=1)",
            "window('a')",
            "window(no_such_word=1)",
        ):
            said = self.refuses(f"ncclscope.{call}", **env)
            self.assertRegex(said, rf"^{ncclscope.BAD} .+", call)
        said = self.refuses("ncclscope.load('/proc/nothing')", NCCLSCOPE_PLUGIN=PLUGIN)
        self.assertRegex(said, rf"^{ncclscope.SYSTEM} .+")

    def test_an_exception_of_the_block_is_the_callers(self) -> None:
        code = """if True:
            try:
                with ncclscope.window():
                    raise KeyError("own")
            except KeyError as error:
                print(error)
        """
        for told in (PLUGIN, "none"):
            self.assertEqual(self.says(code, NCCL_PROFILER_PLUGIN=told), "'own'")

    def test_a_bare_name_is_found_again(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = str(shutil.copy(PLUGIN, Path(folder, _plugin.NAMES[0])))
            code = "print(ncclscope.is_started(), ncclscope._plugin.library().path)\n" * 3
            for told in ("ncclscope", _plugin.NAMES[0]):
                said = self.says(code, NCCL_PROFILER_PLUGIN=told, LD_LIBRARY_PATH=folder)
                self.assertEqual(said.split(), ["False", copy] * 3)

    def test_an_upgrade_in_place_changes_nothing_for_a_process(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = str(shutil.copy(PLUGIN, Path(folder, _plugin.NAMES[0])))
            code = f"""if True:
                import shutil
                first = ctypes.CDLL({copy!r})
                shutil.copy({copy!r}, {copy + ".new"!r})
                os.rename({copy + ".new"!r}, {copy!r})
                c = ncclscope._plugin.library().c
                one, other = (ctypes.cast(x.ncclscope_stop, ctypes.c_void_p) for x in (first, c))
                print(one.value == other.value)
            """
            self.assertEqual(self.says(code, NCCL_PROFILER_PLUGIN=copy), "True")

    def test_before_the_first_communicator_a_drill_says_so(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            env = {"NCCLSCOPE_PLUGIN": PLUGIN, "XDG_CACHE_HOME": folder}
            code = "ncclscope.load(), ncclscope.simulate_hang(1)"
            said = self.refuses(code, **env)
        self.assertIn(f"{ncclscope.OFF} there is no communicator yet", said)

    def test_a_loaders_path_that_was_reset_does_no_harm(self) -> None:
        # The launcher kept one variable and dropped the other.
        env = {"NCCL_PROFILER_PLUGIN": _plugin.NAMES[0], "NCCLSCOPE_PLUGIN": PLUGIN}
        code = f"ncclscope.is_started(); print(ctypes.CDLL({_plugin.NAMES[0]!r})._name)"
        self.assertEqual(self.says(code, **env), _plugin.NAMES[0])

    def test_a_process_that_had_no_variable_loads_it(self) -> None:
        code = f"""if True:
            ncclscope.load("runs")
            # The calls that NCCL makes, by release.
            c = ctypes.CDLL(os.environ["NCCL_PROFILER_PLUGIN"])
            same = c.ncclscope_stop, ncclscope._plugin.library().c.ncclscope_stop
            one, other = (ctypes.cast(f, ctypes.c_void_p).value for f in same)
            print(one == other, os.environ["NCCLSCOPE_DIR"] == os.path.abspath("runs"))
            print(os.environ.get("NCCLSCOPE_CHAIN"))
            # A process that it starts uses the loader's path.
            import subprocess, sys
            c = "import ctypes; ctypes.CDLL({_plugin.NAMES[0]!r}); print('child')"
            subprocess.run([sys.executable, "-c", c], check=True)
        """
        with tempfile.TemporaryDirectory() as folder:
            env = {"NCCLSCOPE_PLUGIN": PLUGIN, "XDG_CACHE_HOME": folder, "PYTHONUNBUFFERED": "1"}
            code = f"os.chdir({folder!r})\n" + code
            self.assertEqual(self.says(code, **env).split(), ["True", "True", "None", "child"])
            said = self.says(code, **env, NCCL_PROFILER_PLUGIN="libother.so").split()
            self.assertEqual(said, ["True", "True", "libother.so", "child"])

    def test_what_is_no_plugin_is_named(self) -> None:
        libc = "libc.so.6"
        said = self.refuses(
            "ncclscope.stop(required=True)", NCCL_PROFILER_PLUGIN=f"/lib/x86_64-linux-gnu/{libc}"
        )
        self.assertIn("is not a plugin of ncclscope", said)

    def test_before_the_first_communicator(self) -> None:
        env = {"NCCL_PROFILER_PLUGIN": PLUGIN}
        self.assertRegex(self.says("print(ncclscope.version())", **env), r"^\d+\.\d+\.\d+$")
        self.assertEqual(self.says("print(ncclscope.is_started())", **env), "False")
        self.assertEqual(self.refuses("ncclscope.start(); ncclscope.stop()", **env), "done")
        self.assertEqual(self.refuses("ncclscope.start(seconds=0.5, at=9e8)", **env), "done")
        self.assertEqual(self.refuses("ncclscope.set_step(3)", **env), "done")
        self.assertEqual(self.refuses("ncclscope.on_hang(print)", **env), "done")
        for call in ("dump()", "mark('here')", "simulate_hang(1)"):
            said = self.refuses(f"ncclscope.{call}", **env)
            self.assertRegex(said, rf"^{ncclscope.OFF} \w+", call)
        for call in (
            "start(sample=0)",
            "start(seconds=-1)",
            "start(seconds=1, steps=1)",
            "start(at=9e12)",
            "set_step(-1)",
            "mark('a\\0b')",
        ):
            said = self.refuses(f"ncclscope.{call}", **env)
            self.assertRegex(said, rf"^{ncclscope.BAD} .+", call)

    def test_a_drill_is_told_of_and_its_end(self) -> None:
        code = """if True:
            import time
            table = (ctypes.c_void_p * 6).in_dll(ncclscope._plugin.library().c, "ncclProfiler_v5")
            number, pointer = ctypes.c_int, ctypes.c_void_p
            types = (pointer, ctypes.c_uint64, pointer, ctypes.c_char_p, number, number, number)
            init = ctypes.CFUNCTYPE(number, *types, pointer)(table[1])
            context, mask = pointer(), number()
            init(ctypes.byref(context), 7, ctypes.byref(mask), b"tp", 1, 1, 0, None)
            told = []
            ncclscope.on_hang(told.append)
            ncclscope.simulate_hang(0.3)
            until = time.monotonic() + 60
            while len(told) < 2 and time.monotonic() < until:
                time.sleep(0.01)
            print([(hang["event"], hang["drill"], hang["comm_name"]) for hang in told])
        """
        with tempfile.TemporaryDirectory() as folder:
            env = {"NCCL_PROFILER_PLUGIN": PLUGIN, "NCCLSCOPE_DIR": folder}
            said = self.says(code, **env)
        self.assertEqual(said, "[('hung', True, 'tp'), ('recovered', True, 'tp')]")

    def test_the_copy_that_nccl_loaded_counts(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copy(PLUGIN, Path(folder, _plugin.NAMES[0]))
            code = (
                f"ours = ncclscope._plugin.library().path\nctypes.CDLL({str(copy)!r})\n"
                "os.environ['NCCL_PROFILER_PLUGIN'] = 'ncclscope'\n"
                "print(ours, ncclscope._plugin.library().path, ncclscope._plugin.library().path)"
            )
            said = self.says(code, NCCL_PROFILER_PLUGIN=PLUGIN)
            self.assertEqual(said.split(), [PLUGIN, str(copy), str(copy)])

    def test_a_file_has_one_state_however_it_is_found(self) -> None:
        library = ctypes.CDLL(PLUGIN)
        with mock.patch.dict(os.environ, NCCL_PROFILER_PLUGIN=PLUGIN):
            ours = _plugin.library()
        address = ctypes.cast(library.ncclscope_stop, ctypes.c_void_p).value
        self.assertEqual(ours.address("ncclscope_stop"), address)


class Exporting(unittest.TestCase):
    """Profiles of torch, without torch: a module of its name, and a profiler that only exports."""

    def test_a_place_that_cannot_be_written_costs_the_tracks_only(self) -> None:
        no_room = OSError(errno.ENOSPC, "No space left on device")
        no_right = PermissionError(errno.EACCES, "Permission denied")
        for error in (no_room, no_right, None):
            # Nothing can be made in /proc.
            path = "/proc/trace.json" if error is None else "/tmp/trace.json"
            failing = mock.patch("tempfile.mkdtemp", side_effect=error)
            with failing if error else contextlib.nullcontext():
                result, said = self.export(path)
            self.assertEqual(result, "exported")
            self.assertEqual(len(said), 1, said)
            self.assertRegex(said[0], f"no NCCL tracks in {path}: .+")

    def export(self, path: str) -> tuple[str, list[str]]:
        """What an export returns, and the warnings."""
        fake = types.ModuleType("torch")
        fake.__file__ = "/nowhere/torch/__init__.py"
        profiler = types.SimpleNamespace(
            execution_trace_observer=None, export_chrome_trace=lambda path: "exported"
        )
        with mock.patch.dict(sys.modules, torch=fake):
            import ncclscope.torch

            with warnings.catch_warnings(record=True):
                hooked = ncclscope.torch.profile_hook(profiler, live=False)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = hooked.export_chrome_trace(path)
        return result, [str(warning.message) for warning in caught]

    def test_the_compiler_may_have_words_around_it(self) -> None:
        for told, words in (
            ("g++", ["g++"]),
            ("ccache g++ -m64", ["ccache", "g++", "-m64"]),
            ("'/opt/my tools/c++' -O0", ["/opt/my tools/c++", "-O0"]),
        ):
            with mock.patch.dict(os.environ, CXX=told):
                self.assertEqual(_kineto._compiler(), words)
        for told, says in (("'g++", "no shell understands"), (" ", "name one in CXX")):
            with mock.patch.dict(os.environ, CXX=told):
                with self.assertRaisesRegex(ncclscope.Error, says):
                    _kineto._compiler()


class Tool(unittest.TestCase):
    def test_what_it_says_becomes_the_error(self) -> None:
        tool = _tool.tool_path(PLUGIN)
        with self.assertRaisesRegex(ncclscope.Error, "/nowhere"):
            _tool.run(tool, "report", "/nowhere")
        with self.assertRaisesRegex(ncclscope.Error, "cannot run /nowhere"):
            _tool.run(Path("/nowhere"), "report")


if __name__ == "__main__":
    unittest.main()
