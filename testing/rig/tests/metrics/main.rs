// SPDX-License-Identifier: Apache-2.0
/*!
Metrics of real jobs, compared with their recordings and with links of known speed; dashboards and
alerts in a real Prometheus on a real job: every query returns data.

The agent follows a job of two ranks while it runs. Prometheus scrapes the agent itself, a second
one that exports other projects' names, and the node exporter, which reads the first agent's
textfile.
*/

#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

mod link;
mod totals;

use rig::job::Job;
use rig::{build, wheel};
use serde_json::Value;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use totals::{expect_totals, sum};

/// Time limit, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// True if the programs are installed; otherwise prints that the test is skipped, or fails if
/// skipping is forbidden.
fn has_prometheus() -> bool {
    let programs = ["prometheus", "promtool", "prometheus-node-exporter"];
    let works = |program: &&str| {
        Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let missing: Vec<&str> = programs.into_iter().filter(|program| !works(program)).collect();
    let required = std::env::var("NCCLSCOPE_REQUIRE_PROM").is_ok_and(|value| value == "1");
    assert!(missing.is_empty() || !required, "not in PATH: {missing:?}");
    if !missing.is_empty() {
        println!("skipped: not in PATH: {missing:?}");
    }
    missing.is_empty()
}

fn dashboards() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboards")
}

fn promtool(args: &[&str]) -> String {
    let output = Command::new("promtool").args(args).current_dir(dashboards()).output().unwrap();
    let of = String::from_utf8_lossy;
    let text = format!("{}{}", of(&output.stdout), of(&output.stderr));
    assert!(output.status.success(), "promtool {args:?}: {text}");
    text
}

/// A program that is killed on drop.
struct Program(Child);

impl Program {
    fn start(command: &mut Command) -> Program {
        let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
        Program(quiet.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}")))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A free local address.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// A query, with its place in the dashboards.
type Query = (String, String);

/// The queries of all panels and variables of all dashboards, and those of all alerts.
fn queries() -> Vec<Query> {
    let mut queries = Vec::new();
    for entry in std::fs::read_dir(dashboards()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let board: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let name = path.file_name().unwrap().to_string_lossy();
            let before = queries.len();
            of_dashboard(&name, &board, &mut queries);
            assert!(queries.len() > before + 5, "{name} has hardly a query");
        }
    }
    assert!(queries.len() > 40, "{}", queries.len());
    queries.extend(alerts());
    queries
}

fn of_dashboard(name: &str, value: &Value, queries: &mut Vec<Query>) {
    match value {
        Value::Array(values) => values.iter().for_each(|v| of_dashboard(name, v, queries)),
        Value::Object(fields) => {
            let text = |field: &str| fields.get(field).and_then(Value::as_str);
            let of = || {
                format!("{name}: {}", text("title").or_else(|| text("name")).unwrap_or("a panel"))
            };
            if let Some(expr) = text("expr") {
                queries.push((of(), without_variables(expr)));
            }
            let labels = text("query").and_then(|query| query.strip_prefix("label_values("));
            if let Some((metric, label)) =
                labels.and_then(|q| q.strip_suffix(')')?.rsplit_once(','))
            {
                let text = without_variables(&format!("group by ({label}) ({metric})"));
                queries.push((of(), text));
            }
            fields.values().for_each(|v| of_dashboard(name, v, queries));
        }
        _ => {}
    }
}

/// The panels of a dashboard: title, unit, and query.
fn panels(board: &Value) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for panel in board["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap_or_default();
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            found.push((title.to_owned(), unit.to_owned(), query.to_owned()));
        }
    }
    found
}

#[test]
fn ranks_of_a_communicator_are_shown_of_one_communicator_only() {
    let mut by_rank = 0;
    for name in ["job.json", "communicator.json", "peers.json", "hang.json"] {
        let board = std::fs::read(dashboards().join(name)).unwrap();
        let board: Value = serde_json::from_slice(&board).unwrap();
        let variables = board["templating"]["list"].as_array().unwrap();
        let of = |name: &str| variables.iter().find(|variable| variable["name"] == name);
        for (title, unit, query) in panels(&board) {
            if query.contains("by (nccl_rank") || query.contains("by (le, nccl_rank") {
                by_rank += 1;
                assert!(query.contains("$communicator"), "{name}: {title}: {query}");
                let communicator = of("communicator").unwrap();
                for choice in ["includeAll", "multi"] {
                    assert_eq!(communicator[choice], false, "{name}: {choice}");
                }
            }
            // The busy time of several threads a second may be more than one second.
            if query.contains("busy_time") {
                assert_eq!(unit, "short", "{name}: {title}");
            }
        }
    }
    assert!(by_rank >= 8, "{by_rank}");
}

/// The query as Grafana sends it, with all values selected.
fn without_variables(text: &str) -> String {
    let text = text.replace("$__rate_interval", "30s");
    let text = ["$instance", "$job_name", "$job", "$communicator"]
        .iter()
        .fold(text, |t, v| t.replace(v, ".*"));
    assert!(!text.contains('$'), "a variable that this test does not know: {text}");
    text
}

/// The names and expressions of all alerts.
fn rules() -> Vec<Query> {
    let text = std::fs::read_to_string(dashboards().join("alerts.yml")).unwrap();
    let rule = |rule: &str| {
        let name = rule.lines().next().unwrap();
        let expr = rule.split_once("expr: ").unwrap().1.split("\n        labels:").next().unwrap();
        let expr = expr.split("\n        for:").next().unwrap().trim_start_matches(">-");
        (name.to_owned(), expr.to_owned())
    };
    let rules: Vec<Query> = text.split("- alert: ").skip(1).map(rule).collect();
    assert_eq!(rules.len(), text.matches("expr:").count());
    rules
}

/// Alerts, whether or not they fire: with `bool` a comparison returns data whenever its operands
/// do. Ranges are shortened to the length of this job.
fn alerts() -> Vec<Query> {
    let mut alerts = Vec::new();
    for (name, expr) in rules() {
        let words = expr.split_whitespace().map(|word| match word {
            ">" | "<" | "==" => format!("{word} bool"),
            // An excluding series may be there or not, so `unless` becomes `or`.
            "unless" => "or".into(),
            word => word.replace("[5m]", "[30s]").replace("[10m]", "[30s]").replace("1h", "1s"),
        });
        let text = words.collect::<Vec<_>>().join(" ");
        alerts.push((format!("alert {name}"), text));
    }
    alerts
}

struct Prometheus {
    url: String,
    _server: Program,
}

impl Prometheus {
    fn start(folder: &Path, targets: &[(&str, &str)]) -> Prometheus {
        let mut config = String::from("global: { scrape_interval: 1s }\nscrape_configs:\n");
        for (job, address) in targets {
            let line = format!(
                "  - {{ job_name: {job}, static_configs: [{{ targets: ['{address}'] }}] }}\n"
            );
            config += &line;
        }
        let file = folder.join("prometheus.yml");
        std::fs::write(&file, config).unwrap();
        let address = free_address();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("tsdb").display()));
        command.arg(format!("--web.listen-address={address}"));
        Prometheus { url: format!("http://{address}"), _server: Program::start(&mut command) }
    }

    /// The result of an instant query; empty while Prometheus starts.
    fn ask(&self, query: &str) -> Vec<Value> {
        let mut command = Command::new("promtool");
        let output = command.args(["query", "instant", "-o", "json", &self.url, query]).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("bad_data"), "{query}: {said}");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Repeats the query until there is data.
    fn data(&self, query: &str, end: Instant) -> Option<Vec<Value>> {
        loop {
            let data = self.ask(query);
            if !data.is_empty() || Instant::now() > end {
                return (!data.is_empty()).then_some(data);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// A job without steps.
fn recorded_job(plugin: &Path, nccl: &Path, folder: &Path) -> Job {
    let job = Job::new(nccl).expect("the stand-in builds").timeout(Duration::from_secs(300));
    job.env("NCCL_PROFILER_PLUGIN", plugin).env("NCCLSCOPE_DIR", folder)
}

/// A job that runs until it is killed, after operations of several sizes.
fn endless_job(plugin: &Path, nccl: &Path, folder: &Path) -> Job {
    let sizes = ["repeat:10:allreduce:1024", "repeat:10:allreduce:65536"];
    // Each window has several sizes, which the latency of a link needs.
    let job = recorded_job(plugin, nccl, folder);
    job.steps(["sendrecv:65536"].into_iter().chain([sizes; 5_000].into_iter().flatten()))
}

fn agent(cli: &Path, run: &Path, address: &str) -> Command {
    let mut command = Command::new(cli);
    command.args(["agent", "--interval", "1", "--labels", "rank,peer,channel"]);
    command.args(["--hang-sec", "2", "--dir"]);
    command.arg(run).args(["--prom-listen", address]);
    command
}

#[test]
fn every_query_of_every_dashboard_and_alert_returns_data() {
    let (Some(nccl), true) = (wheel::find_or_skip("2.28.9"), has_prometheus()) else { return };
    let (plugin, cli) = product();
    let folder = tempfile::tempdir().unwrap();
    let (run, textfiles) = (folder.path().join("run"), folder.path().join("textfiles"));
    std::fs::create_dir(&run).unwrap();
    std::fs::create_dir(&textfiles).unwrap();
    let (ours, theirs, node) = (free_address(), free_address(), free_address());
    let _agent = Program::start(agent(&cli, &run, &ours).arg("--textfile").arg(&textfiles));
    let mut compatible = agent(&cli, &run, &theirs);
    let _compatible = Program::start(compatible.env("NCCLSCOPE_PROM_COMPAT", "inspector"));
    let mut exporter = Command::new("prometheus-node-exporter");
    exporter.args(["--collector.disable-defaults", "--collector.textfile"]);
    exporter.arg(format!("--collector.textfile.directory={}", textfiles.display()));
    let _exporter = Program::start(exporter.arg(format!("--web.listen-address={node}")));
    let targets = [("ncclscope", &*ours), ("inspector", &*theirs), ("node", &*node)];
    let prometheus = Prometheus::start(folder.path(), &targets);
    let running = endless_job(&plugin, &nccl, &run).start().expect("ranks start");
    // Inside a node, and without events that show an end.
    let hidden = endless_job(&plugin, &nccl, &run).hosts(1).devices(2);
    let hidden = hidden.env("NCCLSCOPE_KERNEL", "off").env("NCCLSCOPE_CUDA_EVENTS", "off");
    let hidden = hidden.start().expect("ranks start");
    let calls = ["allreduce:4096", "allreduce:4096"];
    let hung = recorded_job(&plugin, &nccl, &run).steps(calls);
    let hung = hung.rank_steps(1, [calls[0], "sleep:300000"]).start().expect("ranks start");

    let end = Instant::now() + PATIENCE;
    let mut silent: Vec<Query> = queries();
    silent.retain(|(_, query)| prometheus.data(query, end).is_none());
    assert!(silent.is_empty(), "no data: {silent:#?}");
    // The template of NVIDIA's Inspector.
    let template = "avg by (message_size, nranks, n_nodes) (nccl_bus_bandwidth_gbs)";
    let rows = prometheus.data(template, end).expect("Inspector's names");
    assert!(rows.iter().all(|row| row["metric"]["nranks"] == "2"), "{rows:?}");
    let scraped = "sum(nccl_operations_total{job=\"node\", nccl_operation_name=\"AllReduce\"})";
    assert!(prometheus.data(scraped, end).is_some(), "through the node exporter");
    let text = std::fs::read_to_string(textfiles.join("ncclscope.prom")).unwrap();
    check_metrics(&text);
    drop((running, hidden, hung));
}

/// The product, a run directory, and an agent that follows it and writes a textfile.
struct Followed {
    cli: PathBuf,
    run: PathBuf,
    textfile: PathBuf,
    plugin: PathBuf,
    /// Address of the agent.
    address: String,
    _agent: Program,
    _folder: tempfile::TempDir,
}

impl Followed {
    fn start() -> Followed {
        let (plugin, cli) = product();
        let folder = tempfile::tempdir().unwrap();
        let (run, textfiles) = (folder.path().join("run"), folder.path().join("textfiles"));
        std::fs::create_dir(&run).unwrap();
        std::fs::create_dir(&textfiles).unwrap();
        let address = free_address();
        let mut command = agent(&cli, &run, &address);
        let agent = Program::start(command.arg("--textfile").arg(&textfiles));
        let textfile = textfiles.join("ncclscope.prom");
        let (_agent, _folder) = (agent, folder);
        let followed = Followed { cli, run, textfile, plugin, address, _agent, _folder };
        // The agent ignores processes that exited before its first scan.
        followed.wait(|text| !text.is_empty());
        followed
    }

    /// Waits until the textfile satisfies `is_wanted`, and returns it.
    fn wait(&self, is_wanted: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let text = std::fs::read_to_string(&self.textfile).unwrap_or_default();
            if is_wanted(&text) {
                return text;
            }
            assert!(Instant::now() < end, "not what is waited for: {text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the agent has metrics of operations and follows no process.
    fn wait_for_end(&self) -> String {
        self.wait(|text| {
            sum(text, "ncclscope_agent_processes", &[]) == 0.0
                && sum(text, "nccl_operations_total", &[]) > 0.0
        })
    }

    fn tool(&self, args: &[&str]) -> Vec<u8> {
        tool(&self.cli, &self.run, args)
    }
}

/// The output of the tool, run in `folder`.
fn tool(cli: &Path, folder: &Path, args: &[&str]) -> Vec<u8> {
    let output = Command::new(cli).args(args).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The plugin and the tool.
fn product() -> (PathBuf, PathBuf) {
    build::artifacts().expect("the stand-in builds");
    (build::plugin(), build::tool())
}

#[test]
fn totals_are_those_of_the_recordings() {
    let Some(nccl) = wheel::find_or_skip("2.28.9") else { return };
    let followed = Followed::start();
    let job = Job::new(&nccl).expect("the stand-in builds").timeout(Duration::from_secs(100));
    let job = job.env("NCCL_PROFILER_PLUGIN", &followed.plugin).env("NCCLSCOPE_DIR", &followed.run);
    let steps = ["repeat:150:allreduce:4096", "repeat:40:allreduce:65536", "sendrecv:300001"];
    job.steps(steps).run().expect("ranks start").expect_success();
    let report = followed.tool(&["report", ".", "--format", "json"]);
    let report: Value = serde_json::from_slice(&report).unwrap();
    let once = ["agent", "--once", "--dir", ".", "--labels", "rank,peer,channel"];
    let funcs = ["AllReduce", "Send", "Recv"];
    expect_totals(&String::from_utf8(followed.tool(&once)).unwrap(), &report, &funcs);
    expect_totals(&followed.wait_for_end(), &report, &funcs);
}

#[test]
fn ranks_that_are_killed_are_exported_to_their_end() {
    let Some(nccl) = wheel::find_or_skip("2.28.9") else { return };
    let followed = Followed::start();
    let mut running =
        endless_job(&followed.plugin, &nccl, &followed.run).start().expect("ranks start");
    let transfers = |text: &str| sum(text, "nccl_link_transfers_total", &[]);
    let alive = followed
        .wait(|text| sum(text, "ncclscope_agent_processes", &[]) == 2.0 && transfers(text) > 100.0);
    running.kill(1);
    drop(running.wait());
    let text = followed.wait_for_end();
    assert!(transfers(&text) >= transfers(&alive), "no counter falls: {text}");
    assert_eq!(sum(&text, "nccl_operations_in_flight", &[]), 0.0, "{text}");
    let once = ["agent", "--once", "--dir", ".", "--labels", "rank,peer,channel"];
    let once = String::from_utf8(followed.tool(&once)).unwrap();
    assert_eq!(transfers(&text), transfers(&once), "what the lanes held was read");
}

/// Asserts that `promtool check metrics` reports nothing.
fn check_metrics(text: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn each_alert_fires_on_what_it_is_for() {
    if !has_prometheus() {
        return;
    }
    assert!(promtool(&["check", "rules", "alerts.yml"]).contains("12 rules found"));
    assert!(promtool(&["test", "rules", "alerts_test.yml"]).contains("SUCCESS"));
}
