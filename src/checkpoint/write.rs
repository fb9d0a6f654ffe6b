//! Writing files so that a crash leaves the old file or the new one, never half of either.
//!
//! [`SafetensorsFile`] streams tensors to disk in the order they were declared; small files go through `crate::files`.

use super::files::shown;
use super::types::Dtype;
use crate::error::{Error, Result};
use crate::text::clean;
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A tensor announced to [`SafetensorsFile::create`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Full name.
    pub name: String,
    /// Element type; must have a size in whole bytes.
    pub dtype: Dtype,
    /// Shape, outermost first.
    pub shape: Vec<u64>,
}

impl Declared {
    /// A tensor of `name`, `dtype` and `shape`.
    #[must_use]
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: &[u64]) -> Declared {
        Declared { name: name.into(), dtype, shape: shape.to_vec() }
    }

    fn bytes(&self) -> Option<u64> {
        let elements = self.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d))?;
        elements.checked_mul(self.dtype.size()?)
    }
}

/// A safetensors file being written, tensor by tensor, under a temporary name beside its own.
///
/// The header is written first, so every tensor is declared up front; data starts at a multiple of 8; keys lie in
/// offset order. Dropped before [`SafetensorsFile::finish`], it leaves nothing behind.
#[derive(Debug)]
pub struct SafetensorsFile {
    out: Temp,
    /// Name and length of every tensor, in file order.
    declared: Vec<(String, u64)>,
    /// Tensor being written, and how much of it is.
    at: usize,
    filled: u64,
    written: u64,
}

impl SafetensorsFile {
    /// Starts the file `path` that will hold `tensors` in this order, with `metadata` beside `format = pt`.
    ///
    /// # Errors
    /// A name declared twice, a type without a byte size, sizes beyond 64 bits, or the disk refuses.
    pub fn create(path: &Path, tensors: &[Declared], metadata: &[(&str, &str)]) -> Result<SafetensorsFile> {
        let mut header = Map::new();
        let mut about = Map::from_iter([("format".to_string(), Value::from("pt"))]);
        about.extend(metadata.iter().map(|(k, v)| ((*k).to_string(), Value::from(*v))));
        header.insert("__metadata__".into(), Value::Object(about));
        let (mut declared, mut seen, mut offset) = (Vec::new(), HashSet::new(), 0u64);
        for t in tensors {
            let bad =
                |why: &str| Error::run(format!("cannot write tensor '{}' to {}: {why}", clean(&t.name), shown(path)));
            if t.name == "__metadata__" || !seen.insert(&t.name) {
                return Err(bad("the name is taken"));
            }
            let bytes = t.bytes().ok_or_else(|| bad("its size is not a whole number of bytes below 2^64"))?;
            let end = offset.checked_add(bytes).ok_or_else(|| bad("the file would pass 2^64 bytes"))?;
            let entry = json!({ "dtype": t.dtype.name(), "shape": t.shape, "data_offsets": [offset, end] });
            header.insert(t.name.clone(), entry);
            declared.push((t.name.clone(), bytes));
            offset = end;
        }
        let mut text = Value::Object(header).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut out = Temp::create(path)?;
        out.write(&(text.len() as u64).to_le_bytes())?;
        out.write(&text)?;
        let mut file = SafetensorsFile { out, declared, at: 0, filled: 0, written: 8 + text.len() as u64 };
        file.skip_full();
        Ok(file)
    }

    /// Writes the whole of the next declared tensor, little-endian.
    ///
    /// # Errors
    /// `name` isn't the next tensor, `bytes` isn't its length, or the disk refuses.
    pub fn tensor(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        // Empty tensors are passed over as soon as they are reached, so naming one is a no-op.
        if bytes.is_empty() && self.declared[..self.at].iter().any(|(n, len)| n == name && *len == 0) {
            return Ok(());
        }
        match self.declared.get(self.at) {
            Some((next, len)) if next == name && *len == bytes.len() as u64 && self.filled == 0 => self.append(bytes),
            Some((next, len)) => Err(self.misuse(&format!(
                "'{}' with {} bytes came where '{}' with {len} bytes was due",
                clean(name),
                bytes.len(),
                clean(next)
            ))),
            None => Err(self.misuse(&format!("'{}' was not declared", clean(name)))),
        }
    }

    /// Writes the next piece of the current tensor; a piece may not cross into the next tensor.
    ///
    /// # Errors
    /// More bytes than the tensor has left, or the disk refuses.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let Some((name, len)) = self.declared.get(self.at) else {
            return if bytes.is_empty() { Ok(()) } else { Err(self.misuse("every tensor is already full")) };
        };
        if bytes.len() as u64 > len - self.filled {
            return Err(self.misuse(&format!("'{}' takes {len} bytes and was given more", clean(name))));
        }
        self.out.write(bytes)?;
        self.filled += bytes.len() as u64;
        self.written += bytes.len() as u64;
        self.skip_full();
        Ok(())
    }

    /// Syncs the file, gives it its name and syncs the folder. Returns the file's length in bytes.
    ///
    /// # Errors
    /// A declared tensor isn't complete, or the disk refuses.
    pub fn finish(self) -> Result<u64> {
        if let Some((name, len)) = self.declared.get(self.at) {
            return Err(self.misuse(&format!("'{}' has {} of {len} bytes", clean(name), self.filled)));
        }
        self.out.commit()?;
        Ok(self.written)
    }

    fn skip_full(&mut self) {
        while self.declared.get(self.at).is_some_and(|(_, len)| *len == self.filled) {
            self.at += 1;
            self.filled = 0;
        }
    }

    fn misuse(&self, what: &str) -> Error {
        Error::run(format!("cannot write {}: {what}", shown(&self.out.path)))
    }
}

/// A file under a temporary name, removed when dropped uncommitted.
#[derive(Debug)]
struct Temp {
    path: PathBuf,
    temp: PathBuf,
    /// `None` once committed.
    file: Option<BufWriter<File>>,
}

impl Temp {
    fn create(path: &Path) -> Result<Temp> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let unique = format!(".{name}.{}-{}.tmp", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let temp = path.with_file_name(unique);
        let file = File::create_new(&temp).map_err(|e| Error::io("create", &temp, e))?;
        Ok(Temp { path: path.to_path_buf(), temp, file: Some(BufWriter::with_capacity(1 << 20, file)) })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let file = self.file.as_mut().expect("written to only before commit");
        file.write_all(bytes).map_err(|e| Error::io("write", &self.path, e))
    }

    fn commit(mut self) -> Result<()> {
        let mut file = self.file.take().expect("committed once");
        let synced = file.flush().and_then(|()| file.get_ref().sync_all());
        if let Err(e) = synced.and_then(|()| std::fs::rename(&self.temp, &self.path)) {
            self.file = Some(file);
            return Err(Error::io("write", &self.path, e));
        }
        let dir = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        crate::files::sync_dir(dir)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // Nothing more can be done about a temporary file that won't go.
            let _ = std::fs::remove_file(&self.temp);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut v: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        v.sort();
        v
    }

    #[test]
    fn what_is_written_the_safetensors_crate_reads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        let declared = [
            Declared::new("z", Dtype::F32, &[2, 1]),
            Declared::new("empty", Dtype::F16, &[0, 4]),
            Declared::new("a", Dtype::BF16, &[3]),
        ];
        let mut f = SafetensorsFile::create(&path, &declared, &[("note", "x\"y")]).unwrap();
        f.tensor("z", &[0, 0, 128, 63, 0, 0, 0, 64]).unwrap();
        f.tensor("empty", &[]).unwrap();
        f.append(&[1, 2]).unwrap();
        f.append(&[3, 4, 5, 6]).unwrap();
        let written = f.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, written);
        assert_eq!(u64::from_le_bytes(bytes[..8].try_into().unwrap()) % 8, 0);
        let st = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(st.tensor("z").unwrap().shape(), [2, 1]);
        assert_eq!(st.tensor("a").unwrap().data(), [1, 2, 3, 4, 5, 6]);
        let (_, meta) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let about = meta.metadata().clone().unwrap();
        assert_eq!((about["format"].as_str(), about["note"].as_str()), ("pt", "x\"y"));
        assert_eq!(meta.offset_keys(), ["z", "empty", "a"]);
        assert_eq!(names(dir.path()), ["a.safetensors"]);
    }

    #[test]
    fn an_unfinished_file_leaves_the_old_one_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        std::fs::write(&path, "old").unwrap();
        let declared = [Declared::new("t", Dtype::F32, &[2])];
        let mut f = SafetensorsFile::create(&path, &declared, &[]).unwrap();
        f.append(&[0; 4]).unwrap();
        let e = f.append(&[0; 5]).unwrap_err();
        assert!(e.to_string().contains("takes 8 bytes"), "{e}");
        let e = f.finish().unwrap_err();
        assert!(e.to_string().contains("'t' has 4 of 8 bytes"), "{e}");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["a.safetensors"]);
    }

    #[test]
    fn tensors_come_in_the_declared_order_and_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        let two = [Declared::new("a", Dtype::F16, &[1]), Declared::new("b", Dtype::F16, &[1])];
        let mut f = SafetensorsFile::create(&path, &two, &[]).unwrap();
        assert!(f.tensor("b", &[0; 2]).is_err());
        assert!(f.tensor("a", &[0; 3]).is_err());
        let twice = [two[0].clone(), two[0].clone()];
        assert!(SafetensorsFile::create(&path, &twice, &[]).is_err());
        let huge = [Declared::new("a", Dtype::F32, &[1 << 32, 1 << 32])];
        assert!(SafetensorsFile::create(&path, &huge, &[]).is_err());
    }
}
