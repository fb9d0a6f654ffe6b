//! `rows.toml`: which programs are compared on what job, with which flags, and what must hold of the figures.

use super::limits::Limit;
use crate::config::{RunConfig, load};
use crate::error::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The whole table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Program that makes the checkpoint and the tokens, and is itself the resident baseline.
    pub common: String,
    /// Program that measures the compute floor, and the shape that it is made for.
    pub floor: Floor,
    /// Peers by name.
    pub peer: BTreeMap<String, Peer>,
    /// Rows in order.
    pub row: Vec<Row>,
}

/// The floor program.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Floor {
    /// File beside the table.
    pub script: String,
    /// Shape whose products it times.
    pub shape: String,
}

/// A peer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Peer {
    /// File beside the table.
    pub script: String,
    /// Flags of every run.
    pub flags: String,
    /// Folder in the work folder that it makes for itself, with `{shape}` and `{layers}`.
    pub shards: Option<String>,
    /// It needs its unpacked wheel: `--peer NAME=PATH`.
    pub wheel: bool,
    /// Runs only where asked for, by `--peer` or `--with`.
    pub optional: bool,
    /// Counts when the better peer is chosen.
    pub rival: bool,
    /// Trains another model of the same size: its loss is its own.
    pub other_model: bool,
}

/// A row: one job, run by ours and by peers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Shape, as the common program knows it.
    pub shape: String,
    /// Decoder layers.
    pub layers: usize,
    /// Tokens of a row of data.
    pub seq: usize,
    /// Rows of a micro-batch; 0 reads as 1.
    pub batch: usize,
    /// Micro-batches of a step; 0 reads as 1.
    pub accum: usize,
    /// Measured steps.
    pub steps: u64,
    /// Steps before them; 0 reads as 3.
    pub warmup: u64,
    /// Where the peers keep the blocks: `ram` or `disk`.
    pub tier: String,
    /// Keys of our config, `section.key=value`.
    pub config: Vec<String>,
    /// Peers, each with flags to try in turn until its memory fits `vram_cap`.
    pub peers: BTreeMap<String, Vec<String>>,
    /// Most live VRAM of a peer in GB; 0 = no cap.
    pub vram_cap_gb: f64,
    /// Our VRAM budget is what the better peer used.
    pub vram_of_better_peer: bool,
    /// Also run ours with every block on the device.
    pub resident: bool,
    /// Seconds after which one program is ended; 0 reads as 300.
    pub time_limit: u64,
    /// What must hold.
    pub limits: Vec<Limit>,
    /// What a reader should know.
    pub note: String,
}

/// What ours runs with in every row, before the row's own keys; the rest are data and folders.
pub const OUR_BASE: [&str; 11] = [
    "data.format=tokens",
    "lora.r=16",
    "lora.alpha=32",
    "lora.targets=q_proj,k_proj,v_proj,o_proj",
    "train.learning_rate=1e-4",
    "train.lr_scheduler_type=constant",
    "train.warmup_steps=0",
    "train.max_grad_norm=0",
    "train.device=cuda",
    "stream.tier=auto",
    "train.seed=42",
];

impl Table {
    /// Reads `rows.toml` in the folder `dir`, and checks that every program it names is there.
    ///
    /// # Errors
    /// There is no such file, or something in it can't be.
    pub fn open(dir: &Path) -> Result<Table> {
        let path = dir.join("rows.toml");
        let text = std::fs::read_to_string(&path).map_err(|e| Error::input("read", &path, e))?;
        let table = Table::parse(&text)?;
        let scripts = table.peer.values().map(|p| &p.script).chain([&table.common, &table.floor.script]);
        for script in scripts {
            if !dir.join(script).is_file() {
                return Err(Error::usage(format!("rows.toml names '{script}', which is not in '{}'", dir.display()))
                    .next("give the folder that holds the scripts: --peers tests/peers"));
            }
        }
        Ok(table)
    }

    /// Reads a table from its text.
    ///
    /// # Errors
    /// It is no such table; the text says where.
    pub fn parse(text: &str) -> Result<Table> {
        let mut table: Table = toml::from_str(text).map_err(|e| Error::usage(format!("rows.toml: {e}")))?;
        let mut seen = Vec::new();
        for row in &mut table.row {
            let bad = |what: String| Err(Error::usage(format!("rows.toml: row '{}': {what}", row.name)));
            if row.name.is_empty() || seen.contains(&row.name) {
                return bad("its name is missing or taken".into());
            }
            if row.shape.is_empty() || row.layers == 0 || row.seq < 2 || row.steps == 0 {
                return bad("shape, layers, seq and steps are needed".into());
            }
            if !["ram", "disk"].contains(&row.tier.as_str()) {
                return bad(format!("tier = '{}': expected ram or disk", row.tier));
            }
            if let Some(unknown) = row.peers.keys().find(|p| !table.peer.contains_key(*p)) {
                return bad(format!("peer '{unknown}' is in no [peer.…] part"));
            }
            if row.peers.values().any(Vec::is_empty) {
                return bad("a peer has no flags to try; \"\" is none".into());
            }
            (row.batch, row.accum) = (row.batch.max(1), row.accum.max(1));
            row.warmup = if row.warmup == 0 { 3 } else { row.warmup };
            row.time_limit = if row.time_limit == 0 { 300 } else { row.time_limit };
            row.our_config(&[])?;
            seen.push(row.name.clone());
        }
        Ok(table)
    }

    /// The rows named in `names`, in the table's order; all where it is empty.
    ///
    /// # Errors
    /// A name is none of the table's.
    pub fn chosen(&self, names: &[String]) -> Result<Vec<Row>> {
        if let Some(unknown) = names.iter().find(|n| !self.row.iter().any(|r| r.name == **n)) {
            let all: Vec<&str> = self.row.iter().map(|r| r.name.as_str()).collect();
            let error = Error::usage(format!("no row '{unknown}'; the rows are {}", all.join(", ")));
            return Err(match crate::config::nearest(unknown, all.iter().copied()) {
                Some(near) => error.next(format!("did you mean '{near}'?")),
                None => error,
            });
        }
        Ok(self.row.iter().filter(|r| names.is_empty() || names.contains(&r.name)).cloned().collect())
    }
}

impl Row {
    /// Tokens of a step.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.seq * self.batch * self.accum
    }

    /// Our config for this row: the base, the row's keys, then `more`; folders and data are the caller's.
    ///
    /// # Errors
    /// A key or a value is none of the config's.
    pub fn our_config(&self, more: &[String]) -> Result<RunConfig> {
        self.config_of(&self.config, more)
    }

    /// Our config with every block on the device: what the row says of `[stream]` left out.
    ///
    /// # Errors
    /// As [`Row::our_config`].
    pub fn resident_config(&self) -> Result<RunConfig> {
        let kept: Vec<String> = self.config.iter().filter(|c| !c.starts_with("stream.")).cloned().collect();
        self.config_of(&kept, &[])
    }

    fn config_of(&self, keys: &[String], more: &[String]) -> Result<RunConfig> {
        let mut sets: Vec<String> = OUR_BASE.map(String::from).to_vec();
        sets.push(format!("data.max_length={}", self.seq));
        sets.push(format!("train.per_device_train_batch_size={}", self.batch));
        sets.push(format!("train.gradient_accumulation_steps={}", self.accum));
        sets.push(format!("train.max_steps={}", self.warmup + self.steps));
        sets.extend(keys.iter().chain(more).cloned());
        Ok(load::load(None, &[], &sets)?.config)
    }

    /// The folder that `peer` makes for itself in this row's runs.
    #[must_use]
    pub fn shards(&self, peer: &Peer) -> Option<String> {
        let pattern = peer.shards.as_deref()?;
        Some(pattern.replace("{shape}", &self.shape).replace("{layers}", &self.layers.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Resident;

    fn shipped() -> Table {
        Table::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers")).unwrap()
    }

    /// Keys that a row of the results has, for limits to name.
    const FIGURES: [&str; 9] = [
        "ours_s",
        "ours_p95",
        "resident_s",
        "bound_s",
        "floor_s",
        "better_peer_s",
        "vram_live",
        "written",
        "host_weights",
    ];

    #[test]
    fn the_shipped_rows_name_known_programs_keys_and_figures() {
        let table = shipped();
        let want = [
            "ram-32",
            "ram-32-best",
            "ram-32-12gb",
            "ram-32-14gb",
            "accum4-16",
            "t8192-16",
            "resident-2048",
            "resident-8192",
            "least-vram-16",
            "disk-cold-16",
            "disk-half-ram-16",
            "launch-0.5b",
            "zero-write",
        ];
        let names: Vec<&str> = table.row.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, want);
        for row in &table.row {
            assert!(row.steps >= if row.tier == "disk" { 5 } else { 10 } && row.warmup == 3, "{}", row.name);
            assert!(!row.limits.is_empty(), "{}", row.name);
            for limit in &row.limits {
                for key in limit.of.iter().chain([&limit.figure]) {
                    let peer = key.strip_prefix("peers.").is_some_and(|p| row.peers.contains_key(p));
                    assert!(peer || FIGURES.contains(&key.as_str()), "{}: {key}", row.name);
                }
                // A limit on a figure that the row doesn't measure would stay open for ever.
                assert!(row.resident || !limit.of.iter().any(|k| k == "resident_s"), "{}", row.name);
            }
        }
    }

    #[test]
    fn every_shipped_row_loads_as_a_run_config() {
        for row in shipped().row {
            let c = row.our_config(&["stream.vram_budget=8 GB".into()]).unwrap();
            assert_eq!(c.stream.vram_budget.0, 8_000_000_000);
            assert_eq!((c.data.format.name(), c.data.max_length, c.lora.r), ("tokens", row.seq, 16));
            assert_eq!(c.train.max_steps, row.warmup + row.steps, "{}", row.name);
            let r = row.resident_config().unwrap();
            assert_eq!((r.stream.resident_blocks, r.stream.vram_budget.0), (Resident::Auto, 0), "{}", row.name);
        }
    }

    #[test]
    fn a_wrong_table_says_what_is_wrong() {
        let head = "common = 'c.py'\n[floor]\nscript = 'f.py'\nshape = 's'\n[peer.a]\nscript = 'a.py'\n";
        let row = |more: &str| {
            format!("{head}[[row]]\nname = 'r'\nshape = 's'\nlayers = 2\nseq = 8\nsteps = 1\ntier = 'ram'\n{more}")
        };
        assert_eq!(Table::parse(&row("")).unwrap().row[0].tokens(), 8);
        for (more, word) in [
            ("config = ['stream.slot=2']", "stream.slots"),
            ("peers = { b = [''] }", "peer 'b'"),
            ("peers = { a = [] }", "no flags"),
            ("colour = 1", "colour"),
        ] {
            let e = Table::parse(&row(more)).unwrap_err().to_string();
            assert!(e.contains(word), "{more}: {e}");
        }
        let e = shipped().chosen(&["ram32".into()]).unwrap_err().to_string();
        assert!(e.contains("did you mean 'ram-32'"), "{e}");
        assert_eq!(shipped().chosen(&["zero-write".into(), "ram-32".into()]).unwrap()[0].name, "ram-32");
    }
}
