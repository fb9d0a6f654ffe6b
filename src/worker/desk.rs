//! The desk: what the screen and the script ask for, answered by the rooms below it.

use super::fetch::Fetch;
use super::gauges::{GaugeSource, with_drive};
use super::handle::RunHandle;
use super::signals::Signals;
use crate::checkpoint::{self, Checkpoint};
use crate::config::{DataFormat, DataSection, DeviceChoice, Mode, RunConfig};
use crate::device::{self, Machine, Past};
use crate::engine::{Engine, Fetched, Job, ModelEntry, Resume, RunEntry, Services};
use crate::error::{Error, Result};
use crate::event::{Command, Event, EventKind};
use crate::plan::{self, Lengths, PlanReport, Verdict};
use crate::report::types::SmartFigures;
use crate::report::{self, Recorder};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread::Builder;
use std::time::{Duration, SystemTime};

/// Facts about this build and machine for `env.json`.
pub type EnvSource = Box<dyn Fn(&RunConfig, &Machine) -> serde_json::Value>;

/// What a desk is given; the command line knows all of it.
pub struct DeskOptions {
    /// Makes the engine of a run.
    pub engine: Box<dyn Fn() -> Box<dyn Engine>>,
    /// Makes the gauges of a run.
    pub gauges: Box<dyn Fn(&Machine) -> GaugeSource>,
    /// Says what goes into `env.json`.
    pub env: EnvSource,
    /// Folders that are or hold model folders; the first is shown first.
    pub places: Vec<PathBuf>,
    /// Folder of run folders, unless the config names one.
    pub results: PathBuf,
    /// Signals that stop a run; [`Signals::none`] where nobody catches any.
    pub signals: Signals,
    /// What the next run goes on from.
    pub resume: Option<Resume>,
}

/// [`Services`] over the real rooms, with whatever engine it is given.
pub struct Desk {
    options: DeskOptions,
    opened: Option<(String, Checkpoint)>,
    measured: Option<(Measured, Machine)>,
    run: Option<RunHandle>,
    /// Runs of a results folder as last listed: a plan at every key press must not read every report.
    listed: Option<(PathBuf, Vec<RunEntry>)>,
    /// What those runs teach the planner about a card (by its UUID) or the processor; read once after each run.
    learned: Option<(Option<String>, BTreeMap<String, Past>)>,
    fetch: Fetch,
    /// Lengths of the data's rows, as last looked at.
    looked: Option<(Looked, Option<Lengths>)>,
}

/// Profile, what is to compute, and the model's folder (its drive is the one described).
type Measured = (Option<PathBuf>, DeviceChoice, PathBuf);

/// Model, settings of the data, and when its files were changed.
type Looked = (String, DataSection, Vec<Option<SystemTime>>);

/// Longest that a plan looks at the data: a plan answers at once.
const LOOK: Duration = Duration::from_secs(1);

/// Lengths of the rows that `config` trains on; `None` where no data is named, it can't be used, or there is too much of it.
#[must_use]
pub fn lengths(config: &RunConfig, checkpoint: &Checkpoint) -> Option<Lengths> {
    if config.data.files.is_empty() {
        return None;
    }
    let (config, checkpoint) = (config.clone(), checkpoint.clone());
    let (tell, told) = sync_channel(1);
    // Tokenizer and template come from anyone: they may take long, and a panic over them here would take the screen.
    let look = move || drop(tell.send(crate::data::lengths(&config, &checkpoint, LOOK)));
    Builder::new().name("row-lengths".into()).spawn(look).ok()?;
    Lengths::of(told.recv_timeout(LOOK).ok()??)
}

impl Desk {
    /// A desk with nothing on it.
    #[must_use]
    pub fn new(options: DeskOptions) -> Desk {
        Desk {
            options,
            opened: None,
            measured: None,
            run: None,
            listed: None,
            learned: None,
            fetch: Fetch::default(),
            looked: None,
        }
    }

    fn results(&self, config: &RunConfig) -> PathBuf {
        config.results.clone().unwrap_or_else(|| self.options.results.clone())
    }

    /// What runs of the results folder took over their forecasts on `machine`.
    fn learned(&mut self, config: &RunConfig, machine: &Machine) -> BTreeMap<String, Past> {
        let card = machine.gpu.as_ref().map(|g| g.uuid.clone().unwrap_or_default());
        // Of another results folder, or after a run, nothing is known yet.
        self.listed(config);
        if let Some((_, past)) = self.learned.as_ref().filter(|l| l.0 == card) {
            return past.clone();
        }
        let past = report::past(self.listed(config), machine);
        self.learned = Some((card, past.clone()));
        past
    }

    /// The runs of the results folder, read once until a run ends or the list is asked for.
    fn listed(&mut self, config: &RunConfig) -> &[RunEntry] {
        let results = self.results(config);
        if self.listed.as_ref().is_none_or(|(at, _)| *at != results) {
            self.listed = Some((results.clone(), report::list(&results)));
            self.learned = None;
        }
        self.listed.as_ref().map_or(&[], |(_, runs)| runs)
    }

    /// Refuses what can be seen to be in the way of a run before a folder is made for it.
    fn startable(&mut self, config: &RunConfig) -> Result<()> {
        refuse_unready(config)?;
        let checkpoint = self.checkpoint(config)?;
        checkpoint.runnable()?;
        if config.data.format != DataFormat::Tokens {
            checkpoint::needs_tokenizer(&checkpoint.dir)?;
        }
        Ok(())
    }

    /// Opens the checkpoint, once per path.
    fn checkpoint(&mut self, config: &RunConfig) -> Result<&Checkpoint> {
        let path = &config.model.path;
        if path.is_empty() {
            return Err(Error::usage("no model chosen").next("pick one on the Models screen or give --model"));
        }
        if self.opened.as_ref().is_none_or(|(p, _)| p != path) {
            let checkpoint = checkpoint::open_model(path, config.model.rebuild_index)?;
            self.opened = Some((path.clone(), checkpoint));
        }
        let (_, checkpoint) = self.opened.as_ref().expect("opened above");
        Ok(checkpoint)
    }

    /// Measures the machine, once for the same [`Measured`].
    fn machine(&mut self, config: &RunConfig, dir: &Path) -> Result<Machine> {
        let of = (config.machine.clone(), config.train.device, dir.to_path_buf());
        if let Some((_, machine)) = self.measured.as_ref().filter(|(known, _)| *known == of) {
            return Ok(machine.clone());
        }
        let machine = device::machine(config, Some(dir))?;
        self.measured = Some((of, machine.clone()));
        Ok(machine)
    }

    /// Lengths of the data's rows, looked at once for the same settings and files.
    fn lengths(&mut self, config: &RunConfig) -> Result<Option<Lengths>> {
        let changed = |f: &PathBuf| std::fs::metadata(f).and_then(|m| m.modified()).ok();
        let times = config.data.files.iter().map(changed).collect();
        let key = (config.model.path.clone(), config.data.clone(), times);
        if self.looked.as_ref().is_none_or(|(at, _)| *at != key) {
            let found = lengths(config, self.checkpoint(config)?);
            self.looked = Some((key, found));
        }
        Ok(self.looked.as_ref().and_then(|(_, found)| found.clone()))
    }

    fn running(&self) -> bool {
        self.run.as_ref().is_some_and(RunHandle::running)
    }
}

/// What the drive of `dir` says of its wear, for the run's record.
fn drive_now(dir: &Path) -> Option<SmartFigures> {
    let wear = device::smart::of_drive(&device::disk::describe(dir))?;
    Some(SmartFigures { written: wear.written.map(|b| b.0), life_used: wear.life_used, source: Some(wear.source) })
}

/// Refuses an infeasible plan with every reason and the nearest fix.
///
/// # Errors
/// The verdict of the chosen mode is `INFEASIBLE`.
pub fn refuse_infeasible(config: &RunConfig, plan: &PlanReport) -> Result<()> {
    let mode = plan.modes.of(config.train.mode);
    if mode.verdict != Verdict::Infeasible {
        return Ok(());
    }
    let error = Error::infeasible(format!("INFEASIBLE ({}): {}", config.train.mode, mode.reasons.join("; ")));
    Err(match &mode.nearest_fix {
        Some(fix) => error.next(fix.clone()),
        None => error,
    })
}

/// Folders whose path begins with `typed`, at most a screenful; hidden ones only where a dot was typed.
fn folders(typed: &str) -> Vec<String> {
    let (parent, start) = typed.rsplit_once('/').map_or(("", typed), |(p, s)| (p, s));
    let at = if typed.starts_with('/') && parent.is_empty() {
        "/"
    } else if parent.is_empty() {
        "."
    } else {
        parent
    };
    let entries = std::fs::read_dir(at).into_iter().flatten().flatten();
    let named = entries.filter(|e| e.path().is_dir()).filter_map(|e| e.file_name().into_string().ok());
    let mut names: Vec<String> =
        named.filter(|n| n.starts_with(start) && (start.starts_with('.') || !n.starts_with('.'))).collect();
    names.sort();
    names.truncate(MOST_FOLDERS);
    let before = typed.strip_suffix(start).unwrap_or(typed);
    names.into_iter().map(|n| format!("{before}{n}")).collect()
}

/// Folders that a prompt offers at most.
const MOST_FOLDERS: usize = 50;

/// Refuses what can be seen to be wrong before a run folder is made.
///
/// # Errors
/// A mode this version can't train, no data file or one that isn't there.
fn refuse_unready(config: &RunConfig) -> Result<()> {
    if config.train.mode != Mode::Lora {
        return Err(Error::usage("full finetuning is a forecast only: this version trains LoRA adapters")
            .next("set train.mode to lora"));
    }
    if config.data.files.is_empty() {
        return Err(Error::usage("no data file is named").next("name JSONL or JSON files in data.files"));
    }
    let files = || config.data.files.iter().chain(&config.data.eval_files);
    files().try_for_each(|f| crate::data::reader::refuse_special(f))?;
    if let Some(f) = files().find(|f| !f.is_file()) {
        return Err(Error::usage(format!("there is no data file '{}'", f.display())).next("correct data.files"));
    }
    Ok(())
}

impl Services for Desk {
    fn models(&mut self) -> Vec<ModelEntry> {
        checkpoint::list(&self.options.places)
    }

    fn plan(&mut self, config: &RunConfig) -> Result<PlanReport> {
        self.what_if(config, &[])
    }

    fn what_if(&mut self, config: &RunConfig, edits: &[plan::Edit]) -> Result<PlanReport> {
        let dir = self.checkpoint(config)?.dir.clone();
        let mut machine = self.machine(config, &dir)?;
        machine.results_free = device::results_free(config, &dir, &self.results(config));
        if config.machine.is_none() {
            machine.past = self.learned(config, &machine);
        }
        let data = self.lengths(config)?;
        let mut report = plan::plan_for(self.checkpoint(config)?, &machine, config, edits, data.as_ref())?;
        report::with_ledger(&mut report, config, self.listed(config));
        Ok(report)
    }

    fn unready(&mut self, config: &RunConfig) -> Option<String> {
        self.startable(config).err().map(|e| e.to_string())
    }

    fn folders(&mut self, typed: &str) -> Vec<String> {
        folders(typed)
    }

    fn start(&mut self, config: &RunConfig) -> Result<()> {
        if self.running() {
            return Err(Error::run("a run is in progress").next("stop it first"));
        }
        self.startable(config)?;
        let plan = self.plan(config)?;
        refuse_infeasible(config, &plan)?;
        // A resumed run goes on from its own adapter.
        if let Some(dir) = config.lora.init_from.as_deref().filter(|_| self.options.resume.is_none()) {
            checkpoint::adapter::read(dir)?;
        }
        self.checkpoint(config)?.runnable()?;
        let mut env = (self.options.env)(config, &plan.machine);
        env["drive"] = serde_json::json!(drive_now(&self.checkpoint(config)?.dir));
        // The Runs screen lists what this run goes into.
        self.options.results = self.results(config);
        let resume = self.options.resume.take();
        let (run_id, run_dir) = match resume.as_ref().and_then(|r| r.checkpoint.parent()) {
            Some(dir) => resumed_run(dir)?,
            None => report::new_run_dir(&self.options.results, &plan.model, config.train.mode)?,
        };
        let mut recorder = Recorder::create(&run_dir, config, &plan, &env)?;
        let dir = self.checkpoint(config)?.dir.clone();
        recorder.ask_drive_at_end(Box::new(move || drive_now(&dir)));
        let job = Job { config: config.clone(), run_dir, run_id, plan, resume };
        let gauges = with_drive((self.options.gauges)(&job.plan.machine), &self.checkpoint(config)?.dir);
        let engine = (self.options.engine)();
        self.run = Some(RunHandle::spawn(engine, job, Box::new(recorder), gauges, self.options.signals.clone())?);
        Ok(())
    }

    fn poll(&mut self) -> Vec<Event> {
        let events = self.run.as_ref().map(RunHandle::poll).unwrap_or_default();
        if events.iter().any(|e| matches!(e.kind, EventKind::Finished(_))) {
            (self.run, self.listed, self.learned) = (None, None, None);
        }
        events
    }

    fn command(&mut self, command: Command) {
        if let Some(run) = &self.run {
            run.command(command);
        }
    }

    fn hang_up(&mut self) {
        self.options.signals.hang_up();
    }

    fn dropped(&self) -> u64 {
        self.run.as_ref().map_or(0, RunHandle::dropped)
    }

    fn runs(&mut self) -> Vec<RunEntry> {
        let runs = report::list(&self.options.results);
        self.listed = Some((self.options.results.clone(), runs.clone()));
        runs
    }

    fn report(&mut self, run_dir: &Path) -> Result<serde_json::Value> {
        report::load(run_dir)
    }

    fn export(&mut self, run_dir: &Path, kind: &str) -> Result<PathBuf> {
        crate::export::export(run_dir, kind)
    }

    fn fetch_headers(&mut self, id: &str) -> Result<()> {
        self.fetch.headers(id)
    }

    fn survey(&mut self, id: &str) -> Result<()> {
        self.fetch.survey(id)
    }

    fn download(&mut self) -> Result<()> {
        self.fetch.download()
    }

    fn cancel_fetch(&mut self) {
        self.fetch.cancel();
    }

    fn fetched(&mut self) -> Vec<Fetched> {
        let said = self.fetch.poll();
        if said.iter().any(|f| matches!(f, Fetched::Headers(_) | Fetched::Model(_))) {
            // The same name may now mean another folder.
            self.opened = None;
        }
        said
    }
}

/// Name and folder of the run that is being resumed.
fn resumed_run(dir: &Path) -> Result<(String, PathBuf)> {
    let dir = dir.canonicalize().map_err(|e| Error::io("open", dir, e))?;
    let name = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    Ok((name, dir))
}
