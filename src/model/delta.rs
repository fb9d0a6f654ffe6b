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

impl<'a> BlockAdapter<'a> {
    /// The adapted projections of `group`, if it has any.
    #[must_use]
    pub fn group(&'a self, group: Group, kernels: &'a Kernels) -> Option<Delta<'a>> {
        let view = self.groups.iter().find(|v| v.group == group)?;
        Some(Delta { view, adapter: self, kernels })
    }
}

/// One group at work. Rows are tokens; `first` is the number of an input's first token in the micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct Delta<'a> {
    view: &'a GroupView,
    adapter: &'a BlockAdapter<'a>,
    kernels: &'a Kernels,
}

impl Delta<'_> {
    /// Number of an adapted projection in the group.
    fn member(&self, role: Role) -> Option<(usize, &Member)> {
        self.view.members.iter().enumerate().find(|(_, m)| m.role == role)
    }

    /// Columns of member `i` in `low` `[T, k·r]`.
    fn columns(&self, low: &Tensor, i: usize) -> Tensor {
        low.narrow(1, i as i64 * self.view.r, self.view.r)
    }

    /// Rows of member `i` in stacked A's.
    fn rows(&self, a: &Tensor, i: usize) -> Tensor {
        a.narrow(0, i as i64 * self.view.r, self.view.r)
    }

    /// A mask's key, and the number of its first element for an input of `width` from token `first`.
    fn mask(&self, role: Role, first: i64, width: i64) -> (MaskKey, u64) {
        let (seed, step, micro_batch) = self.adapter.mask;
        (MaskKey::new(seed, step, micro_batch, self.adapter.block, role as usize), (first * width) as u64)
    }

    /// Room for the low activations of `tokens` tokens, or for their gradient: `[tokens, k·r]`.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn room(&self, tokens: i64) -> Result<Tensor> {
        Ok(Tensor::f_empty([tokens, self.view.a.size()[0]], (self.view.a.kind(), self.view.a.device()))?)
    }

    /// dropout(x)·Aᵀ of every member: x `[T, in]` → `[T, k·r]`.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn squeeze(&self, x: &Tensor, first: i64) -> Result<Tensor> {
        if self.adapter.dropout == 0.0 {
            return Ok(x.f_mm(&self.view.a_t)?);
        }
        let low = self.room(x.size()[0])?;
        for (i, member) in self.view.members.iter().enumerate() {
            let (key, from) = self.mask(member.role, first, x.size()[1]);
            let x = self.kernels.dropout(x, self.adapter.dropout, key, from)?;
            gemm(&self.columns(&low, i), &x, &self.rows(&self.view.a, i).tr(), 0.0, 1.0)?;
        }
        Ok(low)
    }

    /// y += s·low·Bᵀ for projection `role`, if it is adapted.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn expand(&self, role: Role, low: &Tensor, y: &Tensor) -> Result<()> {
        match self.member(role) {
            Some((i, m)) => gemm(y, &self.columns(low, i), &m.b_t, 1.0, self.adapter.scale),
            None => Ok(()),
        }
    }

    /// dlow = s·dy·B for projection `role`, if it is adapted.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn low_grad(&self, role: Role, dy: &Tensor, dlow: &Tensor) -> Result<()> {
        match self.member(role) {
            Some((i, m)) => gemm(&self.columns(dlow, i), dy, &m.b, 0.0, self.adapter.scale),
            None => Ok(()),
        }
    }

    /// dB += s·dyᵀ·low for projection `role`, if it is adapted; `grads` is the flat gradient.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn b_grad(&self, role: Role, dy: &Tensor, low: &Tensor, grads: &Tensor) -> Result<()> {
        let Some((i, m)) = self.member(role) else { return Ok(()) };
        let place = grads.narrow(0, m.at as i64, m.b.numel() as i64).view_as(&m.b);
        gemm_f32(&place, &dy.tr(), &self.columns(low, i), self.adapter.scale)
    }

    /// dx += mask·(dlow·A), over every member.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn input_grad(&self, dlow: &Tensor, dx: &Tensor, first: i64) -> Result<()> {
        if self.adapter.dropout == 0.0 {
            return gemm(dx, dlow, &self.view.a, 1.0, 1.0);
        }
        for (i, member) in self.view.members.iter().enumerate() {
            let (key, from) = self.mask(member.role, first, dx.size()[1]);
            let masked = self.columns(dlow, i).f_mm(&self.rows(&self.view.a, i))?;
            self.kernels.dropout_add(dx, &masked, self.adapter.dropout, key, from)?;
        }
        Ok(())
    }

    /// dA += dlowᵀ·dropout(x), over every member; `grads` is the flat gradient.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn a_grad(&self, dlow: &Tensor, x: &Tensor, first: i64, grads: &Tensor) -> Result<()> {
        debug_assert_eq!(grads.kind(), Kind::Float, "gradients gather in f32");
        let place = grads.narrow(0, self.view.at as i64, self.view.a.numel() as i64).view_as(&self.view.a);
        if self.adapter.dropout == 0.0 {
            return gemm_f32(&place, &dlow.tr(), x, 1.0);
        }
        for (i, member) in self.view.members.iter().enumerate() {
            let (key, from) = self.mask(member.role, first, x.size()[1]);
            let x = self.kernels.dropout(x, self.adapter.dropout, key, from)?;
            gemm_f32(&self.rows(&place, i), &self.columns(dlow, i).tr(), &x, 1.0)?;
        }
        Ok(())
    }
}
