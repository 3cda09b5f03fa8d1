// SPDX-License-Identifier: Apache-2.0
/*!
Metrics under the names of other projects, so that dashboards made for them keep working.

[`inspector`] has the names and labels of NVIDIA's Inspector, [`mosaic`] those of Open Mosaic's
profiler. Neither has a name for an overflow series: samples beyond `max_series` are omitted, and
`ncclscope_series_over_cap` is their number.
*/

mod inspector;
mod mosaic;

pub use inspector::inspector;
pub use mosaic::mosaic;

/// The process that the metrics belong to, for labels. A field that is empty is unknown:
/// Inspector's label is then `unknown`, Mosaic's is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Version of the profiler API and of the format, such as `v5.1`.
    pub version: String,
    /// `SLURM_JOB_ID`.
    pub slurm_job_id: String,
    /// The host.
    pub node: String,
    /// The GPU as `GPU` and its index.
    pub gpu: String,
    /// The GPU's UUID.
    pub gpu_uuid: String,
    /// The rank on its node.
    pub local_rank: String,
}

/// Labels of a series.
type Row = Vec<(&'static str, String)>;
