// SPDX-License-Identifier: Apache-2.0
//! Python environments with the readers of other projects and with the site builder, and `cargo
//! xtask torch`, which creates those with PyTorch.
//!
//! PyTorch's wheels take 1 to 4 GB, so that they are installed only on request, as CI does; `cargo
//! xtask test` uses them if they are installed. No GPU is needed: of the CUDA wheels, only those
//! that `import torch` loads are installed.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::nccl::cache;
use crate::outcome::Outcome;
use crate::process;

struct Venv {
    folder: &'static str,
    /// Pinned PyPI packages, in lists. With `alone`, only these are installed, by [`UV`], without
    /// their dependencies.
    packages: &'static [&'static [&'static str]],
    alone: bool,
    /// Modules whose presence shows that the packages are installed.
    modules: &'static [&'static str],
}

/// Installs gigabytes of wheels in a quarter of pip's time.
const UV: &str = "uv==0.13.9";

/// Readers of traces and metrics, and what is needed to build a wheel without fetching anything.
const READERS: Venv = Venv {
    folder: "venv",
    packages: &[&[
        "perfetto==0.59.1",
        "protobuf==7.36.2",
        "rotel==0.0.1a15",
        "grpcio==1.85.1",
        "opentelemetry-proto==1.45.2",
        "viztracer==1.1.1",
        "setuptools==84.2.1",
    ]],
    alone: false,
    modules: &[
        "perfetto.protos.perfetto.trace.perfetto_trace_pb2",
        "google.protobuf",
        "rotel",
        "grpc",
        "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
        "viztracer",
        // A version that does not need the package `wheel`.
        "setuptools.command.bdist_wheel",
    ],
};

/// The site builder.
const SITE: Venv = Venv {
    folder: "site-venv",
    packages: &[&[
        "mkdocs-material==9.8.2",
        "mkdocs==1.6.1",
        "Markdown==3.11.3",
        "pymdown-extensions==13.1.2",
        "Pygments==2.21.0",
    ]],
    alone: false,
    modules: &["material", "mkdocs", "pymdownx"],
};

/// The modules that PyTorch 2 imports for any CUDA version.
const TORCH_IMPORTS: &[&str] = &[
    "typing_extensions==4.16.0",
    "filelock==4.2.11",
    "sympy==1.14.0",
    "mpmath==1.3.0",
    "networkx==3.6.1",
    "jinja2==3.1.6",
    "markupsafe==3.0.4",
    "fsspec==2026.9.0",
    "numpy==2.4.6",
    "setuptools",
];

/// The newest PyTorch, and HolisticTraceAnalysis.
const TORCH: Venv = Venv {
    folder: "torch-venv",
    packages: &[
        TORCH_IMPORTS,
        &[
            "torch==2.15.0",
            "nvidia-cublas==13.4.1.3",
            "nvidia-cuda-cupti==13.2.86",
            "nvidia-cuda-nvrtc==13.2.86",
            "nvidia-cuda-runtime==13.2.86",
            "nvidia-cudnn-cu13==9.26.0.51",
            "nvidia-cufft==12.2.0.57",
            "nvidia-cufile==1.17.1.22",
            "nvidia-cusolver==12.2.0.11",
            "nvidia-cusparse==12.7.10.12",
            "nvidia-cusparselt-cu13==0.8.1",
            "nvidia-nccl-cu13==2.30.7",
            "nvidia-nvjitlink==13.5.37",
            "nvidia-nvshmem-cu13==3.7.2",
            "nvidia-nvtx==13.2.86",
            "HolisticTraceAnalysis==0.5.0",
            "pandas==3.1.1",
            "python-dateutil==4.0.0",
            "plotly==7.1.0",
            "narwhals==2.29.0",
            "packaging==26.3",
            "psutil==7.2.2",
            "tqdm==4.70.1",
            "requests==2.34.2",
            "certifi==2026.10.18",
            "charset-normalizer==3.5.2",
            "idna==3.20",
            "urllib3==2.8.0",
            "PyYAML==6.0.3",
            "ipywidgets==8.1.9",
            "comm==0.2.3",
            "ipython==9.18.1",
            "asttokens==3.0.2",
            "executing==2.3.0",
            "ipython_pygments_lexers==1.1.1",
            "jedi==0.20.1",
            "jupyterlab_widgets==3.0.17",
            "matplotlib-inline==0.2.2",
            "parso==0.8.7",
            "pexpect==4.9.0",
            "prompt_toolkit==3.0.53",
            "ptyprocess==0.7.0",
            "pure_eval==0.2.4",
            "Pygments==2.21.0",
            "stack-data==0.6.3",
            "traitlets==5.16.1",
            "wcwidth==0.9.4",
            "widgetsnbextension==4.0.16",
        ],
    ],
    alone: true,
    modules: &["torch", "hta.trace_analysis"],
};

/// The PyTorch with NCCL 2.27.3, which accepts no path of a plugin (`docs/loading.md`).
const TORCH_2_8: Venv = Venv {
    folder: "torch28-venv",
    packages: &[
        TORCH_IMPORTS,
        &[
            "torch==2.8.0",
            "nvidia-cublas-cu12==12.8.4.1",
            "nvidia-cuda-cupti-cu12==12.8.90",
            "nvidia-cuda-nvrtc-cu12==12.8.93",
            "nvidia-cuda-runtime-cu12==12.8.90",
            "nvidia-cudnn-cu12==9.10.2.21",
            "nvidia-cufft-cu12==11.3.3.83",
            "nvidia-cufile-cu12==1.13.1.3",
            "nvidia-curand-cu12==10.3.9.90",
            "nvidia-cusolver-cu12==11.7.3.90",
            "nvidia-cusparse-cu12==12.5.8.93",
            "nvidia-cusparselt-cu12==0.7.1",
            "nvidia-nccl-cu12==2.27.3",
            "nvidia-nvjitlink-cu12==12.8.93",
            "nvidia-nvtx-cu12==12.8.90",
        ],
    ],
    alone: true,
    modules: &["torch"],
};

/// The oldest PyTorch that this Python can load.
const OLD_TORCH: Venv = Venv {
    folder: "torch-old-venv",
    packages: &[&[
        "torch==1.13.0",
        "typing_extensions==4.16.0",
        "numpy==1.26.4",
        "setuptools",
        "nvidia-cublas-cu11==11.10.3.66",
        "nvidia-cuda-nvrtc-cu11==11.7.99",
        "nvidia-cuda-runtime-cu11==11.7.99",
        "nvidia-cudnn-cu11==8.5.0.96",
    ]],
    alone: true,
    modules: &["torch"],
};

/// The variables with which tests find a PyTorch, or several separated by colons.
const TORCHES: [(&str, &[&Venv]); 2] = [
    ("NCCLSCOPE_TEST_TORCH_PYTHON", &[&TORCH, &TORCH_2_8]),
    ("NCCLSCOPE_TEST_OLD_TORCH_PYTHON", &[&OLD_TORCH]),
];

/// `cargo xtask torch`.
pub(crate) fn torch() -> Outcome {
    for (variable, venvs) in TORCHES {
        let pythons = venvs.iter().map(|venv| venv.make()).collect::<Outcome<Vec<_>>>()?;
        println!("{variable}={}", std::env::join_paths(pythons)?.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// A Python with the readers, created if it is missing.
pub(crate) fn ordinary() -> Outcome<PathBuf> {
    READERS.make()
}

/// A Python with mkdocs-material, created if it is missing.
pub(crate) fn site() -> Outcome<PathBuf> {
    SITE.make()
}

/// A variable with which tests find Pythons, and its value.
type Named = (&'static str, PathBuf);

/// The Pythons with PyTorch for each variable, if all of its environments exist; also the missing
/// environments.
pub(crate) fn with_torch() -> Outcome<(Vec<Named>, Vec<&'static str>)> {
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    for (variable, venvs) in TORCHES {
        let mut pythons = Vec::new();
        for venv in venvs {
            if venv.is_made()? {
                pythons.push(venv.python()?);
            } else {
                missing.push(venv.folder);
            }
        }
        // Some tests assume that the first one is the newest.
        if pythons.len() == venvs.len() {
            there.push((variable, std::env::join_paths(pythons)?.into()));
        }
    }
    Ok((there, missing))
}

impl Venv {
    fn python(&self) -> Outcome<PathBuf> {
        Ok(self.folder()?.join("bin/python"))
    }

    fn folder(&self) -> Outcome<PathBuf> {
        Ok(cache()?.join(self.folder))
    }

    /// The file that is written last and lists the packages.
    fn list(&self) -> Outcome<PathBuf> {
        Ok(self.folder()?.join("packages.txt"))
    }

    fn text(&self) -> String {
        self.packages.concat().join("\n")
    }

    /// True if the environment exists with these packages. Importing them would take seconds.
    fn is_made(&self) -> Outcome<bool> {
        let made = std::fs::read_to_string(self.list()?);
        Ok(made.is_ok_and(|made| made == self.text()))
    }

    /// The environment's Python, created if it is missing.
    fn make(&self) -> Outcome<PathBuf> {
        let python = self.python()?;
        if self.is_made()? {
            return Ok(python);
        }
        let mut venv = process::command(&["python3", "-m", "venv", "--clear"]);
        process::check(venv.arg(self.folder()?))?;
        self.install(&python)?;
        let import = format!("import {}", self.modules.join(", "));
        process::stdout(Command::new(&python).args(["-c", &import]))?;
        std::fs::write(self.list()?, self.text())?;
        Ok(python)
    }

    fn install(&self, python: &Path) -> Outcome<()> {
        let pip = |packages: &[&str]| {
            let words = "-m pip --disable-pip-version-check install --quiet --no-cache-dir";
            process::check(Command::new(python).args(words.split(' ')).args(packages))
        };
        if !self.alone {
            return pip(&self.packages.concat());
        }
        pip(&[UV])?;
        // The tests write no bytecode, and compiling PyTorch takes as long as the tests do.
        let words = "-m uv pip install --quiet --no-cache --no-deps --compile-bytecode --python";
        let mut uv = Command::new(python);
        uv.args(words.split(' ')).arg(python).args(self.packages.concat());
        process::check(&mut uv)
    }
}
