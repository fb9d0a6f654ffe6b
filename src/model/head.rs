//! Head and loss with the backward in the same pass: no `tokens × vocabulary` tensor ever exists.
//!
//! The head is frozen, so only the gradient of its input is made: dL/dh = (softmax(h·Wᵀ) − onehot)·W, L the sum of the
//! token losses. What the losses are worth (a mean's factor, weights of rows) is not in it: that is the objective's. A head
//! on the device goes in token chunks ([`head_loss`]); one that streams comes in vocabulary chunks, each used once
//! ([`OnlineHead`]).

use super::kernels::{Kernels, OnlineRows, cap_slope};
use crate::device::shim::{gemm, gemm_f32};
use crate::error::Result;
use tch::{Kind, Tensor};

/// The loss of each token, and the gradient of the hidden states when asked for.
#[derive(Debug)]
pub struct HeadLoss {
    /// Negative log-likelihood of each label, `[N]` f32 on the device.
    pub nll: Tensor,
    /// Gradient of the sum of `nll`, `[N, H]`: row `n` is that of `nll[n]`.
    pub grad: Option<Tensor>,
}

/// What the head is asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Hidden states after the final norm, `[N, H]`.
    pub hidden: &'a Tensor,
    /// The token that follows each, `[N]` (Int64; all must be real tokens).
    pub labels: &'a Tensor,
    /// Logits are cap·tanh(product / cap).
    pub cap: Option<f64>,
    /// The gradient is made too.
    pub wanted: bool,
    /// Tokens whose logits are in flight at a time.
    pub tokens: usize,
}

/// Cross-entropy of each state against its label, with a head `[V, H]` that is there as a whole. Logits are in the compute
/// type only. `heard` is asked before each chunk of tokens.
///
/// # Errors
/// The device is out of memory; what `heard` says.
pub fn head_loss(
    kernels: &Kernels,
    asked: Asked<'_>,
    head: &Tensor,
    heard: &dyn Fn() -> Result<()>,
) -> Result<HeadLoss> {
    let _no_grad = tch::no_grad_guard();
    let Asked { hidden, labels, cap, wanted, tokens } = asked;
    let n = hidden.size()[0];
    let chunk = (tokens.max(1) as i64).min(n);
    let options = (hidden.kind(), hidden.device());
    let room = Tensor::f_empty([chunk, head.size()[0]], options)?;
    let grad = wanted.then(|| Tensor::f_empty(hidden.size(), options)).transpose()?;
    let nll = Tensor::f_empty([n], (Kind::Float, hidden.device()))?;
    for at in (0..n).step_by(chunk.max(1) as usize) {
        heard()?;
        let len = chunk.min(n - at);
        let logits = room.narrow(0, 0, len);
        gemm(&logits, &hidden.narrow(0, at, len), &head.tr(), 0.0, 1.0)?;
        let loss = kernels.cross_entropy(&logits, &labels.narrow(0, at, len), cap, grad.is_some())?;
        nll.narrow(0, at, len).copy_(&loss);
        if let Some(grad) = &grad {
            gemm(&grad.narrow(0, at, len), &logits, head, 0.0, 1.0)?;
        }
    }
    Ok(HeadLoss { nll, grad })
}

/// The same loss with the head handed in by vocabulary chunks, each row once and in any split.
///
/// As in flash attention (Dao et al. 2022), a running maximum rescales what earlier chunks gave. The numbers depend on
/// the split into chunks, not on where a chunk came from.
#[derive(Debug)]
pub struct OnlineHead<'a> {
    kernels: &'a Kernels,
    /// `[N, H]`
    hidden: Tensor,
    /// `[N]`
    labels: Tensor,
    cap: Option<f64>,
    /// Tokens whose logits are in flight.
    tokens: i64,
    rows: OnlineRows,
    /// Σ exp(logit − max)·W, and W's row of the label: `[N, H]`, f32 and compute type.
    pull: Option<(Tensor, Tensor)>,
    /// Logits of one chunk; kept while chunks are of one size.
    room: Option<Tensor>,
}

impl<'a> OnlineHead<'a> {
    /// Starts on what is `asked`.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn new(kernels: &'a Kernels, asked: Asked<'_>) -> Result<OnlineHead<'a>> {
        let Asked { hidden, labels, cap, wanted, tokens } = asked;
        let (n, device) = (hidden.size()[0], hidden.device());
        let pull = wanted.then(|| -> Result<(Tensor, Tensor)> {
            let sum = Tensor::f_zeros(hidden.size(), (Kind::Float, device))?;
            Ok((sum, Tensor::f_zeros(hidden.size(), (hidden.kind(), device))?))
        });
        Ok(OnlineHead {
            kernels,
            hidden: hidden.detach(),
            labels: labels.shallow_clone(),
            cap,
            tokens: (tokens.max(1) as i64).min(n.max(1)),
            rows: OnlineRows::new(n, device)?,
            pull: pull.transpose()?,
            room: None,
        })
    }

    /// Takes rows `first_row .. first_row + rows` of the head: `w` `[rows, H]`, read by kernels queued here only. `heard` is
    /// asked before each chunk of tokens.
    ///
    /// # Errors
    /// The device is out of memory; what `heard` says.
    pub fn chunk(&mut self, w: &Tensor, first_row: usize, heard: &dyn Fn() -> Result<()>) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        let (n, words, first) = (self.hidden.size()[0], w.size()[0], first_row as i64);
        let shape = [self.tokens, words];
        let room = match self.room.take() {
            Some(t) if t.size() == shape => t,
            _ => Tensor::f_empty(shape, (self.hidden.kind(), self.hidden.device()))?,
        };
        for at in (0..n).step_by(self.tokens as usize) {
            heard()?;
            let len = self.tokens.min(n - at);
            let (logits, rows) = (room.narrow(0, 0, len), self.rows.narrow(at, len));
            gemm(&logits, &self.hidden.narrow(0, at, len), &w.tr(), 0.0, 1.0)?;
            let labels = self.labels.narrow(0, at, len);
            self.kernels.online_softmax(&logits, &labels, &rows, first, self.cap, self.pull.is_some())?;
            if let Some((sum, _)) = &self.pull {
                let mut sum = sum.narrow(0, at, len);
                let _ = sum.f_mul_(&rows.scale.unsqueeze(1))?;
                gemm_f32(&sum, &logits, w, 1.0)?;
            }
        }
        if let Some((_, picked)) = &self.pull {
            self.kernels.gather_rows(picked, w, &self.labels, first)?;
        }
        self.room = Some(room);
        Ok(())
    }

    /// Loss and gradient once every row has come; a label whose row never came gives NaN.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn finish(self) -> Result<HeadLoss> {
        let _no_grad = tch::no_grad_guard();
        let rows = &self.rows;
        let nll = &rows.max + rows.sum.log() - &rows.picked;
        let grad = match self.pull {
            Some((mut sum, mut picked)) => {
                if let Some(cap) = self.cap {
                    let slope = cap_slope(&rows.picked, cap).to_kind(picked.kind());
                    let _ = picked.f_mul_(&slope.unsqueeze(1))?;
                }
                let _ = sum.f_div_(&rows.sum.unsqueeze(1))?.f_sub_(&picked)?;
                Some(sum.to_kind(self.hidden.kind()))
            }
            None => None,
        };
        Ok(HeadLoss { nll, grad })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::shim;
    use tch::Device;

    const CAPS: [Option<f64>; 2] = [None, Some(7.0)];

    /// Hidden states, head, labels, and autograd's loss sum and its gradient.
    fn case(cap: Option<f64>) -> (Tensor, Tensor, Tensor, f64, Tensor) {
        let _ = shim::init();
        tch::manual_seed(1);
        let opts = (Kind::Float, Device::Cpu);
        let hidden = Tensor::randn([7, 16], opts) * 2.0;
        let head = Tensor::randn([33, 16], opts);
        let labels = Tensor::from_slice(&[0_i64, 5, 32, 7, 7, 1, 2]);
        let x = hidden.detach().set_requires_grad(true);
        let products = x.matmul(&head.tr());
        let logits = cap.map_or(products.shallow_clone(), |cap| (products / cap).tanh() * cap);
        let reference = logits.cross_entropy_loss::<Tensor>(&labels, None, tch::Reduction::Sum, -100, 0.0);
        let want = shim::grad(&[&reference], &[&Tensor::from(1.0_f32)], &[&x]).unwrap().remove(0).unwrap();
        (hidden, head, labels, reference.double_value(&[]), want)
    }

    fn asked<'a>(hidden: &'a Tensor, labels: &'a Tensor, wanted: bool) -> Asked<'a> {
        Asked { hidden, labels, cap: None, wanted, tokens: 4 }
    }

    fn sum(loss: &HeadLoss) -> f64 {
        loss.nll.sum(Kind::Double).double_value(&[])
    }

    fn check(what: &str, got: &HeadLoss, loss: f64, want: &Tensor) {
        let difference = (sum(got) - loss).abs();
        assert!(difference < 2e-5, "{what}: {difference}");
        let worst = (got.grad.as_ref().unwrap() - want).abs().max().double_value(&[]);
        assert!(worst < 8e-6, "{what}: {worst}");
    }

    fn online(split: &[i64], tokens: usize, cap: Option<f64>, wanted: bool) -> HeadLoss {
        let (hidden, head, labels, ..) = case(cap);
        let asked = Asked { hidden: &hidden, labels: &labels, cap, wanted, tokens };
        let mut online = OnlineHead::new(Kernels::of(Device::Cpu), asked).unwrap();
        let mut at = 0;
        for &rows in split {
            online.chunk(&head.narrow(0, at, rows), at as usize, &|| Ok(())).unwrap();
            at += rows;
        }
        assert_eq!(at, 33);
        online.finish().unwrap()
    }

    #[test]
    fn chunks_change_nothing_and_match_autograd() {
        for (cap, tokens) in CAPS.into_iter().flat_map(|cap| [1, 3, 7, 100].map(|n| (cap, n))) {
            let (hidden, head, labels, loss, want) = case(cap);
            let asked = |wanted| Asked { hidden: &hidden, labels: &labels, cap, wanted, tokens };
            let run = |wanted| head_loss(Kernels::of(Device::Cpu), asked(wanted), &head, &|| Ok(())).unwrap();
            check(&format!("{tokens} tokens, cap {cap:?}"), &run(true), loss, &want);
            let only = run(false);
            assert!(only.grad.is_none());
            assert!((sum(&only) - loss).abs() < 2e-5);
        }
    }

    #[test]
    fn a_cap_changes_loss_and_gradient() {
        let [(.., plain, of_plain), (.., bent, of_bent)] = CAPS.map(case);
        assert!((plain - bent).abs() > 1.0 && (of_plain - of_bent).abs().max().double_value(&[]) > 0.1);
    }

    #[test]
    fn vocabulary_chunks_match_autograd_in_any_split() {
        for cap in CAPS {
            let (.., loss, want) = case(cap);
            for split in [vec![33], vec![16, 17], vec![1; 33], vec![30, 3], vec![8, 8, 8, 8, 1]] {
                for tokens in [1, 3, 7, 100] {
                    let what = format!("{split:?} of {tokens} tokens, cap {cap:?}");
                    check(&what, &online(&split, tokens, cap, true), loss, &want);
                    let only = online(&split, tokens, cap, false);
                    assert!(only.grad.is_none());
                    assert!((sum(&only) - loss).abs() < 2e-5, "{what}");
                }
            }
        }
    }

    #[test]
    fn vocabulary_chunks_from_other_memory_are_bit_equal() {
        let (hidden, head, labels, ..) = case(None);
        let run = |copy: bool| {
            let mut online = OnlineHead::new(Kernels::of(Device::Cpu), asked(&hidden, &labels, true)).unwrap();
            for (at, len) in [(0, 16), (16, 16), (32, 1)] {
                let rows = head.narrow(0, at, len);
                online.chunk(&if copy { rows.copy() } else { rows }, at as usize, &|| Ok(())).unwrap();
            }
            let out = online.finish().unwrap();
            let total = sum(&out);
            (Vec::<f32>::try_from(out.grad.unwrap().view([-1])).unwrap(), total)
        };
        assert_eq!(run(false), run(true));
    }

    #[test]
    fn a_label_that_never_came_gives_nan() {
        let (hidden, head, labels, ..) = case(None);
        let mut online = OnlineHead::new(Kernels::of(Device::Cpu), asked(&hidden, &labels, false)).unwrap();
        online.chunk(&head.narrow(0, 0, 32), 0, &|| Ok(())).unwrap();
        assert!(sum(&online.finish().unwrap()).is_nan());
    }
}
