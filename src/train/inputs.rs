//! What a step needs from the host: embedded tokens, rotary tables, labelled places. Made while the step before computes.

use super::walk::BlockWalk;
use crate::data::collate::Batch;
use crate::error::Result;
use crate::model::rope::RopeTable;
use tch::Tensor;

/// Inputs of one step, a value for each micro-batch.
pub(super) struct Inputs {
    /// Token ids, to know the step by.
    ids: Vec<Vec<i64>>,
    /// Rotary tables of each length.
    pub(super) tables: Vec<RopeTable>,
    /// Embedded tokens `[B, S, H]`.
    pub(super) xs: Vec<Tensor>,
    /// Places that carry loss among all tokens, and their labels: Int64 `[N]` both; `None` where there is none.
    pub(super) labels: Vec<Option<(Tensor, Tensor)>>,
}

impl BlockWalk {
    /// Makes the inputs of the step after this one, behind the kernels that are queued.
    ///
    /// # Errors
    /// An id outside the vocabulary, or the device is out of memory.
    pub fn prepare(&mut self, batches: &[Batch]) -> Result<()> {
        self.next = Some(self.make_inputs(batches)?);
        Ok(())
    }

    /// The inputs of `batches`: those prepared, if they are these.
    pub(super) fn inputs(&mut self, batches: &[Batch]) -> Result<Inputs> {
        match self.next.take() {
            Some(i) if i.ids.iter().eq(batches.iter().map(|b| &b.ids)) => Ok(i),
            _ => self.make_inputs(batches),
        }
    }

    fn make_inputs(&mut self, batches: &[Batch]) -> Result<Inputs> {
        let _no_grad = tch::no_grad_guard();
        let tables = batches.iter().map(|b| self.ropes.get(&self.arch, b.len, self.kind, self.device)).collect();
        let xs = batches
            .iter()
            .map(|b| self.residents.embed(&Tensor::from_slice(&b.ids).view([b.rows as i64, b.len as i64])))
            .collect::<Result<Vec<_>>>()?;
        let labels = batches.iter().map(|b| self.labels(b)).collect::<Result<Vec<_>>>()?;
        Ok(Inputs { ids: batches.iter().map(|b| b.ids.clone()).collect(), tables, xs, labels })
    }

    fn labels(&self, batch: &Batch) -> Result<Option<(Tensor, Tensor)>> {
        let (places, labels): (Vec<i64>, Vec<i64>) =
            batch.labels.iter().enumerate().filter(|&(_, &l)| l >= 0).map(|(i, &l)| (i as i64, l)).unzip();
        let place = |v: &[i64]| Tensor::from_slice(v).f_to_device(self.device);
        if places.is_empty() { Ok(None) } else { Ok(Some((place(&places)?, place(&labels)?))) }
    }
}
