//! The adapter's part of a block as matrix products: low = dropout(x)·Aᵀ, y += s·low·Bᵀ, and their gradients.
//!
//! Projections that share an input share one product with their stacked A's, unless dropout gives each its own mask.
//! The scale rides in a product's alpha. Gradients are added in f32 to their places in the flat gradient.

use super::dropout::MaskKey;
use super::kernels::Kernels;
use super::lora::{Group, Target};
use crate::checkpoint::Role;
use crate::device::shim::{gemm, gemm_f32};
use crate::error::Result;
use tch::{Kind, Tensor};

/// A and B of the adapted projections of one group, as views of the flat parameters.
#[derive(Debug)]
pub struct GroupView {
    group: Group,
    /// The A's, `[k·r, in]`.
    a: Tensor,
    /// Its transpose, `[in, k·r]`.
    a_t: Tensor,
    /// Offset of the A's in the flat buffer.
    at: usize,
    r: i64,
    members: Vec<Member>,
}

/// One adapted projection.
#[derive(Debug)]
struct Member {
    role: Role,
    /// B, `[out, r]`.
    b: Tensor,
    /// Its transpose, `[r, out]`.
    b_t: Tensor,
    /// Offset of B in the flat buffer.
    at: usize,
}

impl GroupView {
    /// Views of one block's `targets` in `flat` `[len]`, groups in order.
    #[must_use]
    pub fn of_block(targets: &[Target], r: usize, flat: &Tensor) -> Vec<GroupView> {
        let cut = |at: usize, rows: usize, cols: usize| {
            flat.narrow(0, at as i64, (rows * cols) as i64).view([rows as i64, cols as i64])
        };
        let views = Group::ALL.into_iter().filter_map(|group| {
            let of: Vec<&Target> = targets.iter().filter(|t| group.roles().contains(&t.role)).collect();
            let first = of.first()?;
            let a = cut(first.a, r * of.len(), first.d_in);
            let members = of.iter().map(|t| {
                let b = cut(t.b, t.d_out, r);
                Member { role: t.role, b_t: b.tr(), b, at: t.b }
            });
            Some(GroupView { group, a_t: a.tr(), a, at: first.a, r: r as i64, members: members.collect() })
        });
        views.collect()
    }

    /// Number of an adapted projection in the group.
    fn member(&self, role: Role) -> Option<(usize, &Member)> {
        self.members.iter().enumerate().find(|(_, m)| m.role == role)
    }

    /// Columns of member `i` in `low` `[T, k·r]`.
    fn columns(&self, low: &Tensor, i: usize) -> Tensor {
        low.narrow(1, i as i64 * self.r, self.r)
    }

    /// Rows of member `i` in stacked A's.
    fn rows(&self, a: &Tensor, i: usize) -> Tensor {
        a.narrow(0, i as i64 * self.r, self.r)
    }
}

/// The adapted projections of one block during one visit of one micro-batch.
#[derive(Debug)]
pub struct BlockAdapter<'a> {
    /// Groups with an adapted projection.
    pub groups: &'a [GroupView],
    /// Block, for the masks.
    pub block: usize,
    /// Scale s.
    pub scale: f64,
    /// Dropout on A's input; 0 in evaluation.
    pub dropout: f64,
    /// Seed, step and micro-batch of the masks.
    pub mask: (u64, u64, usize),
}

impl BlockAdapter<'_> {
    /// A mask's key, and the number of its first element for an input of `width` from token `first`.
    fn mask(&self, role: Role, first: i64, width: i64) -> (MaskKey, u64) {
        let (seed, step, micro_batch) = self.mask;
        (MaskKey::new(seed, step, micro_batch, self.block, role as usize), (first * width) as u64)
    }
}

/// The tuned part of the projections of one input, over the tokens from one on: low activations and their gradients are
/// kept here on the way. Where none of them is adapted, every operation does nothing.
#[derive(Debug)]
pub struct Tuned<'a>(Option<Delta<'a>>);

/// One group at work.
#[derive(Debug)]
struct Delta<'a> {
    view: &'a GroupView,
    adapter: &'a BlockAdapter<'a>,
    kernels: &'a Kernels,
    /// Number of the input's first token in the micro-batch.
    first: i64,
    /// dropout(x)·Aᵀ of every member, `[T, k·r]`.
    low: Option<Tensor>,
    /// Its gradient.
    dlow: Option<Tensor>,
}

impl<'a> Tuned<'a> {
    /// The adapted projections of `group` for an input that begins with token `first` of its micro-batch.
    #[must_use]
    pub fn new(adapter: Option<&'a BlockAdapter<'a>>, group: Group, kernels: &'a Kernels, first: i64) -> Tuned<'a> {
        Tuned(adapter.and_then(|adapter| {
            let view = adapter.groups.iter().find(|v| v.group == group)?;
            Some(Delta { view, adapter, kernels, first, low: None, dlow: None })
        }))
    }

    /// Whether there is anything to train.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.0.is_some()
    }

    /// Takes the input `x` `[T, in]` of the projections.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn enter(&mut self, x: &Tensor) -> Result<()> {
        if let Some(d) = &mut self.0 {
            d.low = Some(d.squeeze(x)?);
        }
        Ok(())
    }

    /// y += s·low·Bᵀ for projection `role`, if it is adapted; the input has been taken.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn add(&self, role: Role, y: &Tensor) -> Result<()> {
        let Some(Delta { view, adapter, low: Some(low), .. }) = &self.0 else { return Ok(()) };
        match view.member(role) {
            Some((i, m)) => gemm(y, &view.columns(low, i), &m.b_t, 1.0, adapter.scale),
            None => Ok(()),
        }
    }

    /// Takes the gradients of the projections' outputs: dlow = s·dy·B.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn pull(&mut self, dys: &[(Role, &Tensor)]) -> Result<()> {
        let (Some(d), Some((_, dy))) = (&mut self.0, dys.first()) else { return Ok(()) };
        let dlow = d.room(dy.size()[0])?;
        for (role, dy) in dys {
            if let Some((i, m)) = d.view.member(*role) {
                gemm(&d.view.columns(&dlow, i), dy, &m.b, 0.0, d.adapter.scale)?;
            }
        }
        d.dlow = Some(dlow);
        Ok(())
    }

    /// dx += mask·(dlow·A), over every adapted projection; the outputs' gradients have been taken.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn input_grad(&self, dx: &Tensor) -> Result<()> {
        let Some(Delta { view, adapter, kernels, first, dlow: Some(dlow), .. }) = &self.0 else { return Ok(()) };
        if adapter.dropout == 0.0 {
            return gemm(dx, dlow, &view.a, 1.0, 1.0);
        }
        for (i, member) in view.members.iter().enumerate() {
            let (key, from) = adapter.mask(member.role, *first, dx.size()[1]);
            let masked = view.columns(dlow, i).f_mm(&view.rows(&view.a, i))?;
            kernels.dropout_add(dx, &masked, adapter.dropout, key, from)?;
        }
        Ok(())
    }

    /// Adds the gradients of A and B to the flat gradient: dB += s·dyᵀ·low, dA += dlowᵀ·dropout(x).
    ///
    /// The outputs' gradients have been taken. Where the input hasn't, or its low activations weren't kept, they are made
    /// of `x`.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn grads(&self, dys: &[(Role, &Tensor)], x: &Tensor, grads: &Tensor) -> Result<()> {
        let Some(d @ Delta { dlow: Some(dlow), .. }) = &self.0 else { return Ok(()) };
        let made = if d.low.is_none() { Some(d.squeeze(x)?) } else { None };
        if let Some(low) = d.low.as_ref().or(made.as_ref()) {
            for (role, dy) in dys {
                d.b_grad(*role, dy, low, grads)?;
            }
        }
        drop(made);
        d.a_grad(dlow, x, grads)
    }
}

impl Delta<'_> {
    /// Room for the low activations of `tokens` tokens, or for their gradient: `[tokens, k·r]`.
    fn room(&self, tokens: i64) -> Result<Tensor> {
        Ok(Tensor::f_empty([tokens, self.view.a.size()[0]], (self.view.a.kind(), self.view.a.device()))?)
    }

    /// dropout(x)·Aᵀ of every member: x `[T, in]` → `[T, k·r]`.
    fn squeeze(&self, x: &Tensor) -> Result<Tensor> {
        if self.adapter.dropout == 0.0 {
            return Ok(x.f_mm(&self.view.a_t)?);
        }
        let low = self.room(x.size()[0])?;
        for (i, member) in self.view.members.iter().enumerate() {
            let (key, from) = self.adapter.mask(member.role, self.first, x.size()[1]);
            let x = self.kernels.dropout(x, self.adapter.dropout, key, from)?;
            gemm(&self.view.columns(&low, i), &x, &self.view.rows(&self.view.a, i).tr(), 0.0, 1.0)?;
        }
        Ok(low)
    }

    /// dB += s·dyᵀ·low for projection `role`, if it is adapted.
    fn b_grad(&self, role: Role, dy: &Tensor, low: &Tensor, grads: &Tensor) -> Result<()> {
        let Some((i, m)) = self.view.member(role) else { return Ok(()) };
        let place = grads.narrow(0, m.at as i64, m.b.numel() as i64).view_as(&m.b);
        gemm_f32(&place, &dy.tr(), &self.view.columns(low, i), self.adapter.scale)
    }

    /// dA += dlowᵀ·dropout(x), over every member.
    fn a_grad(&self, dlow: &Tensor, x: &Tensor, grads: &Tensor) -> Result<()> {
        debug_assert_eq!(grads.kind(), Kind::Float, "gradients gather in f32");
        let view = self.view;
        let place = grads.narrow(0, view.at as i64, view.a.numel() as i64).view_as(&view.a);
        if self.adapter.dropout == 0.0 {
            return gemm_f32(&place, &dlow.tr(), x, 1.0);
        }
        for (i, member) in view.members.iter().enumerate() {
            let (key, from) = self.adapter.mask(member.role, self.first, x.size()[1]);
            let x = self.kernels.dropout(x, self.adapter.dropout, key, from)?;
            gemm_f32(&view.rows(&place, i), &view.columns(dlow, i).tr(), &x, 1.0)?;
        }
        Ok(())
    }
}
