//! Reading a GGUF's description forward, with every length checked against what is left.

/// Longest text of a key or tensor name.
const MAX_NAME: u64 = 1 << 16;

/// What went wrong, to be put behind the file's name.
pub type Parsed<T> = std::result::Result<T, String>;

/// A metadata value; strings and arrays point into the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Any integer, sign-extended.
    Int(i128),
    /// `f32` or `f64`.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string, which may not be UTF-8.
    Str(&'a [u8]),
    /// An array of `count` elements of one scalar or string type.
    Array(Array<'a>),
}

/// An array that stays in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    kind: u32,
    /// Number of elements; their bytes were checked to be there.
    pub count: u64,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Calls `f` with each place and element.
    pub(super) fn each(&self, mut f: impl FnMut(u64, Value<'a>) -> Parsed<()>) -> Parsed<()> {
        let mut at = Cursor { bytes: self.bytes, at: 0 };
        (0..self.count).try_for_each(|i| f(i, at.value(self.kind)?))
    }
}

/// Reads forward; every step checks what is left.
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn take(&mut self, n: u64) -> Parsed<&'a [u8]> {
        let left = self.bytes.len() - self.at;
        let n = usize::try_from(n).ok().filter(|n| *n <= left);
        let n = n.ok_or_else(|| format!("truncated: it ends inside its own description (at byte {})", self.at))?;
        let out = &self.bytes[self.at..self.at + n];
        self.at += n;
        Ok(out)
    }
    fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        Ok(self.take(N as u64)?.try_into().expect("take returns what was asked for"))
    }
    pub(super) fn u32(&mut self) -> Parsed<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub(super) fn u64(&mut self) -> Parsed<u64> {
        self.array().map(u64::from_le_bytes)
    }
    fn string(&mut self) -> Parsed<&'a [u8]> {
        let len = self.u64()?;
        self.take(len)
    }
    pub(super) fn name(&mut self) -> Parsed<String> {
        let text = self.string()?;
        if text.len() as u64 > MAX_NAME {
            return Err(format!("a name of {} bytes", text.len()));
        }
        String::from_utf8(text.to_vec()).map_err(|_| "a name that is not UTF-8".to_string())
    }
    /// A value of ggml's metadata type `kind`; arrays of arrays don't occur and are refused.
    pub(super) fn value(&mut self, kind: u32) -> Parsed<Value<'a>> {
        Ok(match kind {
            0 => Value::Int(i128::from(u8::from_le_bytes(self.array()?))),
            1 => Value::Int(i128::from(i8::from_le_bytes(self.array()?))),
            2 => Value::Int(i128::from(u16::from_le_bytes(self.array()?))),
            3 => Value::Int(i128::from(i16::from_le_bytes(self.array()?))),
            4 => Value::Int(i128::from(self.u32()?)),
            5 => Value::Int(i128::from(i32::from_le_bytes(self.array()?))),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.array()?))),
            7 => match u8::from_le_bytes(self.array()?) {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                b => return Err(format!("a boolean of value {b}")),
            },
            8 => Value::Str(self.string()?),
            9 => {
                let kind = self.u32()?;
                let count = self.u64()?;
                let start = self.at;
                match kind {
                    8 => {
                        for _ in 0..count {
                            self.string()?;
                        }
                    }
                    _ => {
                        let each = scalar_bytes(kind).ok_or_else(|| format!("a list of type {kind}"))?;
                        self.take(count.checked_mul(each).ok_or("a list past 64 bits")?)?;
                    }
                }
                Value::Array(Array { kind, count, bytes: &self.bytes[start..self.at] })
            }
            10 => Value::Int(i128::from(self.u64()?)),
            11 => Value::Int(i128::from(i64::from_le_bytes(self.array()?))),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            _ => return Err(format!("a value of unknown type {kind}")),
        })
    }
}

fn scalar_bytes(kind: u32) -> Option<u64> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}
