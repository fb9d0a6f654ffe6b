//! Which card a run uses, and what the planner is told about it.
//!
//! NVML counts cards by PCI place, CUDA by speed unless `CUDA_DEVICE_ORDER=PCI_BUS_ID`: cards are matched by UUID
//! where one is given, and a number that could mean two different cards is said to.

use super::machine::Gpu;
use super::nvml::CardFacts;
use crate::error::{Error, Result};
use crate::units::Bytes;
use std::path::Path;

/// The driver library every CUDA program loads.
const DRIVER_LIBRARY: &str = "libcuda.so.1";
/// Oldest driver that runs CUDA 13.
const OLDEST_DRIVER: u32 = 580;
/// Oldest compute capability that CUDA 13 builds for.
const OLDEST_CAPABILITY: (i32, i32) = (7, 5);
/// Device memory of a CUDA context, cuBLAS and cuDNN beyond what tensors hold: an assumption until measured.
const CONTEXT_OVERHEAD: Bytes = Bytes(600 << 20);
/// Share of the wire's rate that pinned copies reach.
const LINK_SHARE: f64 = 0.85;
/// Share of the tensor cores' rate that a block's GEMMs reach.
const GEMM_SHARE: f64 = 0.6;

/// Whether the NVIDIA driver's library is on this machine. Looks at files only: nothing is loaded, nothing panics.
#[must_use]
pub fn driver_present() -> bool {
    let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let usual = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/lib/x86_64-linux-gnu",
        "/usr/lib/wsl/lib",
        "/usr/local/nvidia/lib64",
        "/usr/local/cuda/compat",
        "/run/opengl-driver/lib",
    ];
    let in_folders =
        path.split(':').filter(|p| !p.is_empty()).chain(usual).any(|dir| Path::new(dir).join(DRIVER_LIBRARY).exists());
    in_folders || cache_names(&std::fs::read("/etc/ld.so.cache").unwrap_or_default(), DRIVER_LIBRARY)
}

/// Whether the loader's cache lists `library`.
fn cache_names(cache: &[u8], library: &str) -> bool {
    let name = library.as_bytes();
    cache.windows(name.len() + 1).any(|w| w[name.len()] == 0 && &w[..name.len()] == name)
}

/// [`driver_present`] as a typed error that names the library searched.
///
/// # Errors
/// There is no driver.
pub fn require_driver() -> Result<()> {
    if driver_present() {
        return Ok(());
    }
    Err(Error::device(format!("no CUDA driver: '{DRIVER_LIBRARY}' is on no library path"))
        .next("install an NVIDIA driver of version 580 or newer, or train with --set train.device=cpu"))
}

/// A chosen card with notes for the user, or why there is none.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The card as the planner sees it.
    pub gpu: Option<Gpu>,
    /// Its place in PCI order.
    pub index: Option<u32>,
    /// Why this one.
    pub why: &'static str,
    /// What was assumed, and why a card isn't used.
    pub notes: Vec<String>,
}

/// Chooses a card as CUDA would: `visible` is `CUDA_VISIBLE_DEVICES`, `order` is `CUDA_DEVICE_ORDER`.
///
/// `host_memory` stands in for the memory of a card that has none of its own.
#[must_use]
pub fn choose(
    driver: Option<&str>,
    cards: &[CardFacts],
    visible: Option<&str>,
    order: Option<&str>,
    host_memory: (Bytes, Bytes),
) -> Choice {
    let mut notes = Vec::new();
    let none = |notes| Choice { gpu: None, index: None, why: "", notes };
    let Some(card) = &pick(cards, visible, order, &mut notes) else {
        return none(notes);
    };
    let name = card.name.clone().unwrap_or_else(|| "NVIDIA GPU".into());
    if let Some(major) = driver.and_then(|d| d.split('.').next()?.parse::<u32>().ok())
        && major < OLDEST_DRIVER
    {
        notes.push(format!("{name} is not used: driver {major} is older than {OLDEST_DRIVER}"));
        return none(notes);
    }
    if let Some(c) = card.capability
        && c < OLDEST_CAPABILITY
    {
        notes.push(format!("{name} is not used: compute capability {}.{} is below 7.5", c.0, c.1));
        return none(notes);
    }
    if card.total.is_none() && !card.shared {
        notes.push(format!("{name} is not used: neither NVML nor CUDA says how much memory it has"));
        return none(notes);
    }
    let gpu = describe(card, name, driver, host_memory, &mut notes);
    let discrete = cards.iter().filter(|c| c.total.is_some()).count();
    let why = match visible {
        Some(_) => "named by CUDA_VISIBLE_DEVICES",
        None if cards.len() == 1 => "the only card",
        None if discrete == 1 && card.total.is_some() => "the only one with memory of its own",
        None => "the one with the most memory",
    };
    Choice { gpu: Some(gpu), index: Some(card.index), why, notes }
}

/// Least VRAM kept free under Windows.
const WINDOWS_MARGIN: Bytes = Bytes(512 << 20);

/// Lowers what counts as free under Windows' driver: past it nothing fails, the driver moves memory to the host and every
/// step crawls. Returns the margin.
pub fn spare_for_windows(gpu: &mut Gpu) -> Bytes {
    let margin = WINDOWS_MARGIN.max(Bytes(gpu.vram_total.0 / 20));
    gpu.vram_free = gpu.vram_free.saturating_sub(margin);
    gpu.spills = true;
    margin
}

/// Variables that CUDA and libtorch read when they start, and their values: of several cards the one that plans are for,
/// since CUDA itself takes the fastest; under WSL the allocator's cap.
///
/// Past its memory Windows' driver refuses nothing: only the allocator itself can.
#[must_use]
pub fn environment() -> Vec<(&'static str, String)> {
    let Some((driver, cards)) = super::nvml::cards() else { return Vec::new() };
    let Some(gpu) = choose_here(driver.as_deref(), &cards, (Bytes::ZERO, Bytes::ZERO)).gpu else { return Vec::new() };
    variables(gpu, cards.len(), super::host::is_wsl())
}

fn variables(gpu: Gpu, cards: usize, wsl: bool) -> Vec<(&'static str, String)> {
    let card = gpu.uuid.clone().filter(|_| cards > 1).map(|uuid| ("CUDA_VISIBLE_DEVICES", uuid));
    let cap = if wsl && !gpu.integrated { cap_of(gpu) } else { None };
    let cap = cap.map(|share| ("PYTORCH_CUDA_ALLOC_CONF", format!("per_process_memory_fraction:{share:.4}")));
    card.into_iter().chain(cap).collect()
}

fn cap_of(mut gpu: Gpu) -> Option<f64> {
    spare_for_windows(&mut gpu);
    let share = gpu.vram_free.0 as f64 / gpu.vram_total.0 as f64;
    (share > 0.0 && share <= 1.0).then_some(share)
}

/// Where notes on assumed rates begin, by what is assumed.
pub const ASSUMED: [(&str, &str); 2] = [("link", "RAM→GPU speed guessed"), ("gemm", "GPU speed guessed")];

/// As [`choose`], by this process's environment.
#[must_use]
pub fn choose_here(driver: Option<&str>, cards: &[CardFacts], host_memory: (Bytes, Bytes)) -> Choice {
    let env = |name: &str| std::env::var(name).ok();
    let (visible, order) = (env("CUDA_VISIBLE_DEVICES"), env("CUDA_DEVICE_ORDER"));
    choose(driver, cards, visible.as_deref(), order.as_deref(), host_memory)
}

fn pick(cards: &[CardFacts], visible: Option<&str>, order: Option<&str>, notes: &mut Vec<String>) -> Option<CardFacts> {
    // CUDA takes the first card of the fastest kind; a card with memory of its own beats one without.
    let default = cards.iter().max_by_key(|c| (c.total.is_some(), c.total, c.shared, std::cmp::Reverse(c.index)));
    let Some(visible) = visible else { return default.cloned() };
    let first = visible.split(',').next().unwrap_or("").trim();
    if first.is_empty() || first == "-1" || first == "NoDevFiles" {
        notes.push("CUDA_VISIBLE_DEVICES hides every card".into());
        return None;
    }
    if let Ok(n) = first.parse::<usize>() {
        let same = cards.windows(2).all(|w| w[0].name == w[1].name);
        if order != Some("PCI_BUS_ID") && !same {
            notes.push(format!(
                "CUDA_VISIBLE_DEVICES={n} counts from the fastest card; taken here in PCI order \
                 (set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the card by its UUID)"
            ));
        }
        let card = cards.get(n);
        if card.is_none() {
            notes.push(format!("CUDA_VISIBLE_DEVICES={n}: there are {} cards", cards.len()));
        }
        return card.cloned();
    }
    if first.starts_with("MIG-") {
        return slice(cards, first, notes);
    }
    let card = cards.iter().find(|c| c.uuid.as_deref().is_some_and(|u| u.starts_with(first)));
    if card.is_none() {
        notes.push("CUDA_VISIBLE_DEVICES names no card of this machine".into());
    }
    card.cloned()
}

/// The card that the MIG slice `uuid` is part of, with the slice's memory where NVML says it.
fn slice(cards: &[CardFacts], uuid: &str, notes: &mut Vec<String>) -> Option<CardFacts> {
    for card in cards {
        if let Some(s) = card.slices.iter().find(|s| s.uuid.starts_with(uuid)) {
            let all = s.total.is_none();
            let of = if all { "memory and rates" } else { "rates" };
            notes.push(format!("a MIG slice is in use: {of} shown are those of the whole card"));
            let (total, free) = if all { (card.total, card.free) } else { (s.total, s.free) };
            return Some(CardFacts { total, free, ..card.clone() });
        }
    }
    // Older drivers name the card in the slice's own name: MIG-GPU-…/1/0.
    let named = |c: &&CardFacts| c.uuid.as_deref().is_some_and(|u| uuid["MIG-".len()..].starts_with(u));
    let card = cards.iter().find(named).or(if cards.len() == 1 { cards.first() } else { None });
    notes.push(match card {
        Some(_) => "a MIG slice is in use: memory and rates shown are those of the whole card".into(),
        None => format!(
            "CUDA_VISIBLE_DEVICES names a MIG slice that none of the {} cards has: no card is used (nvidia-smi -L lists \
             the slices)",
            cards.len()
        ),
    });
    card.cloned()
}

fn describe(
    card: &CardFacts,
    name: String,
    driver: Option<&str>,
    host_memory: (Bytes, Bytes),
    notes: &mut Vec<String>,
) -> Gpu {
    let integrated = card.total.is_none();
    let total = card.total.unwrap_or(host_memory.0);
    let free = card.free.unwrap_or(host_memory.1).min(total);
    if integrated {
        notes.push(format!("{name} is integrated/shared: it uses the host's memory"));
    }
    let h2d = match card.pcie {
        Some((generation, lanes)) => {
            notes.push(format!("RAM→GPU speed guessed from PCIe {generation} x{lanes}"));
            lane_rate(generation) * f64::from(lanes) * LINK_SHARE
        }
        None => {
            notes.push("RAM→GPU speed guessed: the driver doesn't say".into());
            if integrated { 50e9 } else { 12.5e9 }
        }
    };
    let flops = match (card.cores, card.max_clock_mhz, card.capability) {
        (Some(cores), Some(mhz), Some(capability)) => {
            notes.push(format!("GPU speed guessed from {cores} cores at {mhz} MHz"));
            f64::from(cores) * f64::from(mhz) * 1e6 * tensor_flops_per_core(capability) * GEMM_SHARE
        }
        _ => {
            notes.push("GPU speed guessed: the driver doesn't say".into());
            15e12
        }
    };
    let (uuid, driver) = (card.uuid.clone(), driver.map(str::to_string));
    Gpu {
        name,
        uuid,
        driver,
        capability: card.capability,
        vram_total: total,
        vram_free: free,
        overhead: CONTEXT_OVERHEAD,
        h2d,
        d2h: h2d,
        flops,
        integrated,
        ..Gpu::default()
    }
}

/// Bytes per second and lane after line coding.
fn lane_rate(generation: u32) -> f64 {
    match generation {
        0 | 1 => 0.25e9,
        2 => 0.5e9,
        3 => 0.985e9,
        4 => 1.969e9,
        5 => 3.938e9,
        _ => 7.563e9,
    }
}

/// Dense bf16 tensor-core FLOP per CUDA core and clock with fp32 accumulation, by architecture (from NVIDIA's
/// architecture white papers: peak rate ÷ cores ÷ boost clock).
fn tensor_flops_per_core((major, minor): (i32, i32)) -> f64 {
    match (major, minor) {
        (7, 0..=4) => 16.0,
        (7, _) => 8.0,
        (8, 0) => 32.0,
        (9, _) => 32.0,
        (10 | 11, _) => 64.0,
        _ => 4.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: (Bytes, Bytes) = (Bytes(16 << 30), Bytes(12 << 30));

    fn card(index: u32, name: &str, gib: Option<u64>) -> CardFacts {
        CardFacts {
            index,
            name: Some(name.into()),
            uuid: Some(format!("GPU-{index}abc")),
            total: gib.map(|g| Bytes(g << 30)),
            free: gib.map(|g| Bytes((g << 30) - (1 << 30))),
            capability: Some((9, 0)),
            cores: Some(16_896),
            max_clock_mhz: Some(1980),
            pcie: Some((5, 16)),
            shared: gib.is_none(),
            slices: Vec::new(),
        }
    }

    #[test]
    fn case_fo_72_a_card_whose_memory_nobody_knows_is_not_used() {
        // Not supported, lost, no permission: NVML gives no memory, and CUDA didn't call it shared.
        let unknown = CardFacts { shared: false, ..card(0, "Lost", None) };
        let c = choose(None, std::slice::from_ref(&unknown), None, None, HOST);
        assert!(c.gpu.is_none() && c.notes[0].contains("Lost is not used"), "{:?}", c.notes);
        // Another card is taken before it, a shared one too.
        let cards = [unknown.clone(), card(1, "Shared", None)];
        assert_eq!(name(&choose(None, &cards, None, None, HOST)), Some("Shared"));
        let named = choose(None, &cards, Some("GPU-0"), None, HOST);
        assert!(named.gpu.is_none() && named.notes.len() == 1, "{:?}", named.notes);
    }

    #[test]
    fn case_fo_79e_a_mig_slice_is_found_on_its_card_among_several() {
        use crate::device::nvml::Slice;
        let slice = |uuid: &str| Slice { uuid: uuid.into(), total: Some(Bytes(10 << 30)), free: Some(Bytes(9 << 30)) };
        let mut cards = [card(0, "A100", Some(40)), card(1, "A100", Some(40))];
        cards[1].slices = vec![slice("MIG-11"), slice("MIG-22")];
        let gpu = choose(None, &cards, Some("MIG-22"), None, HOST);
        assert_eq!((gpu.index, gpu.gpu.unwrap().vram_total), (Some(1), Bytes(10 << 30)));
        // The old way to name one has the card's own name in it.
        let old = choose(None, &cards, Some("MIG-GPU-1abc/7/0"), None, HOST);
        assert_eq!(old.index, Some(1));
        let none = choose(None, &cards, Some("MIG-99"), None, HOST);
        assert!(none.gpu.is_none() && none.notes[0].contains("nvidia-smi -L"), "{:?}", none.notes);
        assert_eq!(choose(None, &cards[..1], Some("MIG-99"), None, HOST).index, Some(0), "the only card");
    }

    fn name(c: &Choice) -> Option<&str> {
        c.gpu.as_ref().map(|g| g.name.as_str())
    }

    #[test]
    fn case_pl_08_no_driver_is_an_answer_not_a_panic() {
        assert!(!cache_names(b"libcudart.so.13\0libz.so.1\0", DRIVER_LIBRARY));
        assert!(cache_names(b"xx\0libcuda.so.1\0/usr/lib/libcuda.so.1\0", DRIVER_LIBRARY));
        if let Err(e) = require_driver() {
            assert!(e.to_string().contains("no CUDA driver") && e.to_string().contains("libcuda.so.1"), "{e}");
        }
        let none = choose(None, &[], None, None, HOST);
        assert_eq!((none.gpu, none.notes, none.index), (None, vec![], None));
    }

    #[test]
    fn cards_are_matched_by_uuid_and_numbers_are_doubted() {
        let cards = [card(0, "Small", Some(8)), card(1, "Large", Some(24))];
        assert_eq!(name(&choose(None, &cards, None, None, HOST)), Some("Large"));
        assert_eq!(name(&choose(None, &cards, Some("GPU-0"), None, HOST)), Some("Small"));
        let numbered = choose(None, &cards, Some("0"), None, HOST);
        assert_eq!(name(&numbered), Some("Small"));
        assert!(numbered.notes[0].contains("CUDA_DEVICE_ORDER"), "{:?}", numbered.notes);
        let by_bus = choose(None, &cards, Some("0,1"), Some("PCI_BUS_ID"), HOST);
        assert!(!by_bus.notes.iter().any(|n| n.contains("CUDA_DEVICE_ORDER")));
        for hidden in ["", "-1", "7", "GPU-zz"] {
            let c = choose(None, &cards, Some(hidden), None, HOST);
            assert!(c.gpu.is_none() && c.notes.len() == if hidden == "7" { 2 } else { 1 }, "{hidden}: {:?}", c.notes);
        }
    }

    #[test]
    fn case_pl_04_a_discrete_card_is_taken_before_a_shared_one() {
        let cards = [card(0, "Shared", None), card(1, "Discrete", Some(8))];
        let taken = choose(None, &cards, None, None, HOST);
        assert_eq!((name(&taken), taken.index), (Some("Discrete"), Some(1)));
        assert_eq!(taken.why, "the only one with memory of its own");
        let c = choose(None, &cards[..1], None, None, HOST);
        let gpu = c.gpu.unwrap();
        assert!(gpu.integrated && gpu.vram_total == HOST.0 && gpu.vram_free == HOST.1);
        assert!(c.notes.iter().any(|n| n.contains("integrated/shared")));
    }

    #[test]
    fn case_pl_06_under_windows_the_budget_is_what_is_free_less_a_margin() {
        let mut gpu = Gpu { vram_total: Bytes(8_000_000_000), vram_free: Bytes(7_400_000_000), ..Gpu::default() };
        assert_eq!(spare_for_windows(&mut gpu), Bytes(512 << 20));
        assert_eq!(gpu.vram_free, Bytes(7_400_000_000 - (512 << 20)), "a plan of 7.6 GB is past it");
        let again = Gpu { vram_total: Bytes(8_000_000_000), vram_free: Bytes(7_400_000_000), ..Gpu::default() };
        assert!(cap_of(again).is_some_and(|share| (share - 0.8579).abs() < 1e-4), "the allocator's cap");
        assert_eq!(cap_of(Gpu::default()), None);
        let mut large = Gpu { vram_total: Bytes(80_000_000_000), vram_free: Bytes(1_000_000_000), ..Gpu::default() };
        assert_eq!((spare_for_windows(&mut large), large.vram_free), (Bytes(4_000_000_000), Bytes::ZERO));
    }

    #[test]
    fn of_several_cards_cuda_sees_the_one_that_plans_are_for() {
        let cards = [card(0, "Small", Some(8)), card(1, "Large", Some(24))];
        let gpu = choose(None, &cards, None, None, HOST).gpu.unwrap();
        let uuid = gpu.uuid.clone().unwrap();
        assert_eq!(variables(gpu.clone(), 2, false), [("CUDA_VISIBLE_DEVICES", uuid)]);
        assert!(variables(gpu.clone(), 1, false).is_empty(), "the only card needs no choice");
        assert_eq!(variables(gpu, 1, true)[0].0, "PYTORCH_CUDA_ALLOC_CONF");
    }

    #[test]
    fn assumed_rates_are_noted_by_these_words() {
        let bare = CardFacts { pcie: None, cores: None, ..card(0, "Card", Some(8)) };
        for cards in [[card(0, "Card", Some(8))], [bare]] {
            let c = choose(None, &cards, None, None, HOST);
            assert!(ASSUMED.iter().all(|(_, words)| c.notes.iter().any(|n| n.starts_with(words))), "{:?}", c.notes);
        }
    }

    #[test]
    fn an_old_driver_or_card_leaves_the_cpu_with_a_reason() {
        let cards = [card(0, "Card", Some(8))];
        let c = choose(Some("550.54.15"), &cards, None, None, HOST);
        assert!(c.gpu.is_none() && c.notes[0].contains("550"), "{:?}", c.notes);
        let old = [CardFacts { capability: Some((6, 1)), ..cards[0].clone() }];
        assert!(choose(Some("580.1"), &old, None, None, HOST).notes[0].contains("6.1"));
    }

    #[test]
    fn assumed_rates_of_an_h200_are_near_what_was_measured() {
        let gpu = choose(Some("580.95.05"), &[card(0, "H200", Some(140))], None, None, HOST).gpu.unwrap();
        assert!((50e9..58e9).contains(&gpu.h2d), "{}", gpu.h2d);
        assert!((500e12..800e12).contains(&gpu.flops), "{}", gpu.flops);
    }
}
