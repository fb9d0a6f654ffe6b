//! The scripted hub: any model is there, and each look at a fetch finds it one word further.

use crate::engine::{DownloadPlan, Fetched, ModelEntry};
use crate::error::{Error, Result};
use crate::event::Stage;
use crate::units::{Bytes, GB};
use std::collections::VecDeque;

/// Bytes of every model of this hub, and how many of them an earlier download left.
const TOTAL: u64 = 29_551_000_000;
const HERE: u64 = 4_200_000_000;

/// What was fetched, and what is still to be said about it.
#[derive(Debug, Default)]
pub(super) struct FakeHub {
    words: VecDeque<Fetched>,
    surveyed: Option<String>,
    entry: Option<ModelEntry>,
}

impl FakeHub {
    /// The model of which the headers were fetched.
    pub fn models(&self) -> impl Iterator<Item = ModelEntry> {
        self.entry.clone().into_iter()
    }

    pub fn headers(&mut self, id: &str) -> Result<()> {
        self.idle()?;
        if !id.contains('/') {
            return Err(
                Error::usage(format!("'{id}' is not a hub id")).next("write owner/name, or owner/name@revision")
            );
        }
        self.words.extend((0..=2).map(|n| progress(&format!("headers of {id}"), 4 * n, 8, "files")));
        self.words.push_back(Fetched::Headers(id.to_owned()));
        self.entry = Some(ModelEntry {
            name: id.to_owned(),
            path: id.into(),
            origin: "hub".into(),
            family: "qwen2".into(),
            params: 14_770_033_664,
            bytes: Bytes(29_540_067_328),
            n_blocks: 48,
            problem: Some("only headers are here: can be planned, not trained".into()),
            not_here: true,
        });
        Ok(())
    }

    pub fn survey(&mut self, id: &str) -> Result<()> {
        self.idle()?;
        self.surveyed = Some(id.to_owned());
        self.words.push_back(progress(&format!("files of {id}"), 6, 14, "files"));
        self.words.push_back(Fetched::Survey(DownloadPlan {
            model: id.to_owned(),
            commit: "cf98f3b3bbb457ad9e2bb7baf9a0125b6b88caa8".into(),
            files: 14,
            total: Bytes(TOTAL),
            fetch: Bytes(TOTAL - HERE),
            free: Bytes(312 * GB),
            cache: "/home/alice/.cache/huggingface/hub".into(),
        }));
        Ok(())
    }

    pub fn download(&mut self) -> Result<()> {
        self.idle()?;
        let id = self.surveyed.clone().ok_or_else(|| Error::usage("no download was looked into"))?;
        let shard = |n: u64| format!("model-{n:05}-of-00008.safetensors");
        for (n, done) in [(2, HERE), (3, 9_100_000_000), (4, 13_900_000_000), (8, TOTAL)] {
            self.words.push_back(progress(&shard(n), done, TOTAL, "bytes"));
        }
        self.words.push_back(Fetched::Model(id));
        Ok(())
    }

    pub fn cancel(&mut self) {
        if !self.words.is_empty() {
            self.words = VecDeque::from([Fetched::Cancelled]);
        }
    }

    pub fn said(&mut self) -> Vec<Fetched> {
        let word = self.words.pop_front();
        if matches!(word, Some(Fetched::Model(_)))
            && let Some(entry) = &mut self.entry
        {
            (entry.not_here, entry.problem, entry.origin) = (false, None, "hub cache".into());
        }
        word.into_iter().collect()
    }

    fn idle(&self) -> Result<()> {
        if self.words.is_empty() { Ok(()) } else { Err(Error::run("something is being fetched already")) }
    }
}

fn progress(name: &str, done: u64, total: u64, unit: &str) -> Fetched {
    Fetched::Progress(Stage { name: name.into(), done, total, unit: unit.into() })
}
