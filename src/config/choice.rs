//! Keys that take one of a few names: an enum each, so that nothing past the check compares text.

use serde::{Deserialize, Serialize};

/// An enum whose variants are the names that a key takes.
macro_rules! choices {
    ($($(#[$about:meta])* $name:ident { $($(#[$case:meta])* $variant:ident = $text:literal),+ $(,)? })+) => { $(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$case])* #[serde(rename = $text)] $variant),+
        }

        impl $name {
            /// Every name, in the order in which messages and arrow keys show them.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The name in a config.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text),+
                }
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                match text {
                    $($text => Ok($name::$variant),)+
                    _ => Err(format!("expected one of {}", Self::NAMES.join(", "))),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    )+ };
}

choices! {
    /// `data.format`: what the rows look like.
    DataFormat {
        /// Found by the columns of each file.
        #[default]
        Auto = "auto",
        /// A list under `messages`.
        Messages = "messages",
        /// A list under `conversations`.
        ShareGpt = "sharegpt",
        /// `instruction` and `output`.
        Alpaca = "alpaca",
        /// `prompt` and `completion`.
        PromptCompletion = "prompt_completion",
        /// `text`.
        Text = "text",
        /// `input_ids`; never detected.
        Tokens = "tokens",
    }

    /// `data.over_long`: what happens to rows over `data.max_length`.
    OverLong {
        /// The last tokens go.
        #[default]
        TruncateEnd = "truncate_end",
        /// The first tokens go.
        TruncateStart = "truncate_start",
        /// The row is left out.
        Drop = "drop",
        /// The run doesn't start.
        Error = "error",
    }

    /// `data.train_on`: which tokens carry loss.
    TrainOn {
        /// Those of every assistant turn.
        #[default]
        Assistant = "assistant",
        /// Those of the last assistant turn only.
        LastAssistant = "last_assistant",
        /// Every token.
        All = "all",
    }

    /// `data.system_fallback`: what happens to a system turn under a template that has none.
    SystemFallback {
        /// The run doesn't start.
        #[default]
        Stop = "stop",
        /// It is put before the next user turn, with an empty line between.
        Fold = "fold",
        /// It is left out.
        Drop = "drop",
    }

    /// `data.control_tokens`: what control tokens that the turns of a row spell out are.
    ControlTokens {
        /// Letters like any others.
        #[default]
        Text = "text",
        /// The tokens themselves.
        Tokens = "tokens",
        /// The row is left out.
        Drop = "drop",
    }

    /// `train.mode`: what is trained.
    Mode {
        /// Adapters beside a frozen base.
        #[default]
        Lora = "lora",
        /// Every weight.
        Full = "full",
    }

    /// `train.lr_scheduler_type`: how the learning rate goes over the run, as `transformers.optimization` defines it.
    Scheduler {
        /// Down to zero in a line.
        #[default]
        Linear = "linear",
        /// Down to zero along half a cosine.
        Cosine = "cosine",
        /// Always the peak.
        Constant = "constant",
        /// The peak, once it is reached.
        ConstantWithWarmup = "constant_with_warmup",
    }

    /// `train.device`: what computes.
    DeviceChoice {
        /// The GPU where there is one that can, else the CPU.
        #[default]
        Auto = "auto",
        /// The CPU.
        Cpu = "cpu",
        /// The GPU, or nothing.
        Cuda = "cuda",
    }

    /// `stream.tier`: where blocks that aren't on the device wait.
    TierChoice {
        /// In host memory as far as they fit, else on disk.
        #[default]
        Auto = "auto",
        /// In host memory, or nothing.
        Ram = "ram",
        /// On disk.
        Disk = "disk",
    }

    /// `stream.head`: where the output layer is.
    HeadPlace {
        /// On the device if it fits.
        #[default]
        Auto = "auto",
        /// On the device.
        Resident = "resident",
        /// Beside the blocks; its rows cross the link once a step.
        Stream = "stream",
    }

    /// `stream.activation_offload`: whether block inputs wait for the backward pass in host memory.
    Offload {
        /// When they don't fit the device.
        #[default]
        Auto = "auto",
        /// Always.
        On = "on",
        /// Never.
        Off = "off",
    }
}

/// `lora.targets`: every projection that can carry an adapter, in the order of a block; the attention's four come first.
pub const TARGETS: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_a_file_holds() {
        for name in DataFormat::NAMES {
            let read: DataFormat = toml::Value::String((*name).into()).try_into().unwrap();
            assert_eq!((read.name(), read.to_string().as_str(), name.parse()), (*name, *name, Ok(read)));
            assert_eq!(toml::Value::try_from(read).unwrap().as_str(), Some(*name));
        }
        assert_eq!("most".parse::<Offload>(), Err("expected one of auto, on, off".into()));
    }
}
