//! Head and loss in token chunks, with the backward in the same chunk: no `tokens × vocabulary` tensor ever exists.
//!
//! The head is frozen, so only the gradient of its input is made: dL/dh = (softmax(h·Wᵀ) − onehot)·W / tokens.

use tch::{Kind, Tensor};

/// Sum of token losses, and the gradient of the hidden states when asked for.
#[derive(Debug)]
pub struct HeadLoss {
    /// Sum over trained tokens, f64 scalar on the device.
    pub loss_sum: Tensor,
    /// `[N, H]`, of the loss sum times `weight`.
    pub grad: Option<Tensor>,
}

/// Cross-entropy of `hidden` `[N, H]` (after the final norm) against `labels` `[N]` (Int64; all must be real tokens).
///
/// `weight` scales the gradient (1 / trained tokens of the step); `chunk` tokens are in flight at a time.
#[must_use]
pub fn head_loss(hidden: &Tensor, labels: &Tensor, head: &Tensor, weight: Option<f64>, chunk: usize) -> HeadLoss {
    let _no_grad = tch::no_grad_guard();
    let n = hidden.size()[0];
    let mut loss_sum = Tensor::zeros([], (Kind::Double, hidden.device()));
    let grad = weight.map(|_| hidden.zeros_like());
    let mut at = 0;
    while at < n {
        let len = (n - at).min(chunk.max(1) as i64);
        let label = labels.narrow(0, at, len).unsqueeze(1);
        let mut logits = hidden.narrow(0, at, len).matmul(&head.tr()).to_kind(Kind::Float);
        let lse = logits.logsumexp([1_i64].as_slice(), true);
        let token_loss = &lse - logits.gather(1, &label, false);
        loss_sum += token_loss.sum(Kind::Double);
        if let (Some(weight), Some(grad)) = (weight, &grad) {
            logits -= &lse;
            let mut p = logits.exp_();
            let minus_one = Tensor::full([len, 1], -1.0, (Kind::Float, p.device()));
            let _ = p.scatter_add_(1, &label, &minus_one);
            p *= weight;
            grad.narrow(0, at, len).copy_(&p.to_kind(head.kind()).matmul(head));
        }
        at += len;
    }
    HeadLoss { loss_sum, grad }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn chunks_change_nothing_and_match_autograd() {
        let _ = crate::device::shim::init();
        tch::manual_seed(1);
        let opts = (Kind::Float, Device::Cpu);
        let hidden = Tensor::randn([7, 16], opts);
        let head = Tensor::randn([33, 16], opts);
        let labels = Tensor::from_slice(&[0_i64, 5, 32, 7, 7, 1, 2]);
        let x = hidden.detach().set_requires_grad(true);
        let reference =
            x.matmul(&head.tr()).cross_entropy_loss::<Tensor>(&labels, None, tch::Reduction::Sum, -100, 0.0);
        let want = crate::device::shim::grad(&[&reference], &[&Tensor::from(0.25_f32)], &[&x]).unwrap();
        for chunk in [1, 3, 7, 100] {
            let got = head_loss(&hidden, &labels, &head, Some(0.25), chunk);
            let difference = (got.loss_sum.double_value(&[]) - reference.double_value(&[])).abs();
            assert!(difference < 1e-5, "chunk {chunk}: {difference}");
            let worst = (got.grad.unwrap() - want[0].as_ref().unwrap()).abs().max().double_value(&[]);
            assert!(worst < 1e-6, "chunk {chunk}: {worst}");
        }
    }
}
