//! Encoding of texts in which some control tokens are letters and others are the template's.

use super::{Encoded, Tokenizer, caught};
use crate::error::{Error, Result};
use crate::text::clean;
use std::collections::HashMap;
use std::ops::Range;
use tokenizers::AddedToken;

/// A tokenizer to which the control tokens mean nothing, and texts that no data holds stand for them.
#[derive(Debug)]
pub(super) struct Apart {
    inner: tokenizers::Tokenizer,
    /// Ids of those texts, and the tokens that they stand for.
    ids: HashMap<u32, u32>,
}

/// Around the number of a token in the text that stands for it: a code point that no text has, the last one that a mark
/// would be.
const EDGE: char = '\u{FDEF}';

fn stand_in(id: u32) -> String {
    format!("{EDGE}{id}{EDGE}")
}

impl Apart {
    pub(super) fn of(inner: &tokenizers::Tokenizer) -> Result<Apart> {
        let mut inner = inner.clone();
        let controls: Vec<(u32, AddedToken)> =
            inner.get_added_tokens_decoder().into_iter().filter(|(_, token)| token.special).collect();
        let standing = |(id, token): &(u32, AddedToken)| AddedToken {
            content: stand_in(*id),
            special: false,
            normalized: false,
            ..token.clone()
        };
        let adding: Vec<AddedToken> = controls.iter().map(standing).collect();
        let failed = |e: tokenizers::Error| Error::data(format!("tokenizer.json: {}", clean(&e.to_string())));
        caught(|| inner.add_tokens(adding)).map_err(failed)?;
        inner.set_encode_special_tokens(true);
        let ids = controls.iter().filter_map(|(id, _)| Some((inner.token_to_id(&stand_in(*id))?, *id))).collect();
        Ok(Apart { inner, ids })
    }
}

impl Tokenizer {
    /// As [`Tokenizer::encode`], but the control tokens at `letters` are text like any other. `None` if the text holds
    /// what stands for a token here, or a token begins inside of one of them.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_apart(&self, text: &str, letters: &[Range<usize>]) -> Result<Option<Encoded>> {
        if letters.is_empty() {
            return self.encode(text).map(Some);
        }
        if text.contains(EDGE) {
            return Ok(None);
        }
        let apart = match self.apart.get() {
            Some(apart) => apart,
            None => {
                let made = Apart::of(&self.inner)?;
                self.apart.get_or_init(|| made)
            }
        };
        // What is encoded, and where each piece of it lies there and in the text.
        let (mut given, mut pieces, mut from) = (String::with_capacity(text.len() * 2), Vec::new(), 0);
        for (at, id) in self.controls_in(text) {
            if letters.contains(&at) {
                continue;
            }
            if letters.iter().any(|l| l.start < at.end && at.start < l.end) {
                return Ok(None);
            }
            given += &text[from..at.start];
            let begun = given.len();
            given += &stand_in(id);
            from = at.end;
            pieces.push((begun..given.len(), at));
        }
        given += &text[from..];
        let mut encoded = self.encode_with(&apart.inner, &given, |id| apart.ids.get(&id).copied().unwrap_or(id))?;
        // A token never begins or ends inside of a stand-in.
        let back = |place: usize| match pieces[..pieces.partition_point(|(there, _)| there.end <= place)].last() {
            Some((there, here)) => here.end + (place - there.end),
            None => place,
        };
        encoded.offsets.iter_mut().for_each(|(start, end)| (*start, *end) = (back(*start), back(*end)));
        Ok(Some(encoded))
    }
}
