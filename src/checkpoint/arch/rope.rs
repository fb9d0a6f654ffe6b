//! Rotary position embedding: tables of frequencies, and how a layer uses one.

use serde::{Deserialize, Serialize};

/// A table of frequencies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base.
    pub theta: f64,
    /// Scaling rule.
    pub scaling: RopeScaling,
}

/// How a layer rotates queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeUse {
    /// Which of [`super::Arch::ropes`].
    pub table: usize,
    /// Width of a head that is rotated, its first elements.
    pub width: usize,
    /// Which elements turn together.
    pub pairs: Pairs,
    /// Rotated in f32, then rounded (olmo2, cohere).
    pub f32: bool,
}

/// Which elements of a head turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// Element i and the one half a width further.
    Halves,
    /// Neighbours (glm4, cohere, deepseek).
    Neighbours,
}

/// Rotary scaling rules, as transformers names them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// `default`: none.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// ≥ 1.
        factor: f64,
    },
    /// Llama 3.1's by wavelength.
    Llama3 {
        /// Divisor of long wavelengths.
        factor: f64,
        /// Long-wavelength border = original / this.
        low_freq_factor: f64,
        /// Short-wavelength border = original / this.
        high_freq_factor: f64,
        /// Context the model was trained at first.
        original_max_position_embeddings: f64,
    },
    /// A rule that a plan does not depend on and no pass computes.
    Other {
        /// What the config calls it.
        name: String,
    },
}

impl Rope {
    /// Inverse frequencies, `width / 2` of them, scaling applied (transformers' `modeling_rope_utils`).
    #[must_use]
    pub fn inv_freq(&self, width: usize) -> Vec<f64> {
        (0..width / 2)
            .map(|i| {
                let f = self.theta.powf(-(2.0 * i as f64) / width as f64);
                match &self.scaling {
                    // No pass gets as far: [`super::Arch::unsupported`] names the rule.
                    RopeScaling::None | RopeScaling::Other { .. } => f,
                    RopeScaling::Linear { factor } => f / factor,
                    &RopeScaling::Llama3 {
                        factor,
                        low_freq_factor: low,
                        high_freq_factor: high,
                        original_max_position_embeddings: original,
                    } => {
                        let wavelength = std::f64::consts::TAU / f;
                        if wavelength < original / high {
                            f
                        } else if wavelength > original / low {
                            f / factor
                        } else {
                            let smooth = (original / wavelength - low) / (high - low);
                            (1.0 - smooth) * f / factor + smooth * f
                        }
                    }
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_ck_23_llama3_scaling_matches_the_reference_ratios() {
        let ratios = |head_dim, factor| {
            let scaled = Rope {
                theta: 500_000.0,
                scaling: RopeScaling::Llama3 {
                    factor,
                    low_freq_factor: 1.0,
                    high_freq_factor: 4.0,
                    original_max_position_embeddings: 8192.0,
                },
            };
            let plain = Rope { theta: 500_000.0, scaling: RopeScaling::None };
            let (s, p) = (scaled.inv_freq(head_dim), plain.inv_freq(head_dim));
            s.iter().zip(p).map(|(s, p)| s / p).collect::<Vec<_>>()
        };
        let r = ratios(128, 8.0);
        for (i, want) in
            [(28, 1.0), (29, 0.828168), (30, 0.643743), (32, 0.371122), (34, 0.190211), (35, 0.125), (63, 0.125)]
        {
            assert!((r[i] - want).abs() < 1e-6, "{i}: {} {want}", r[i]);
        }
        let r = ratios(64, 32.0);
        for (i, want) in [(14, 1.0), (15, 0.605573), (16, 0.303743), (17, 0.103448), (31, 0.03125)] {
            assert!((r[i] - want).abs() < 1e-6, "{i}: {} {want}", r[i]);
        }
    }
}
