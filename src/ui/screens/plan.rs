//! Plan: the verdict of each mode, why, what moves and what it costs, beside the settings that change it.

use super::form::{FormState, draw as form};
use super::whatif::WhatIf;
use crate::config::Mode;
use crate::event::TierName;
use crate::plan::{ModePlan, PlanReport, Verdict, VramPlan, wear_text, words};
use crate::ui::app::App;
use crate::ui::form::PLAN;
use crate::ui::text::cut;
use crate::ui::theme::{Theme, Tone};
use crate::ui::widgets::blockmap::{BlockMap, counts, tier_style};
use crate::ui::widgets::{bar, lines, packed, pair, pane, put, shell_lines, wrap};
use crate::units::{Bytes, count, ratio_of, secs};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// State of the Plan screen.
#[derive(Clone, Debug, Default)]
pub struct PlanScreen {
    /// The settings.
    pub form: FormState,
    /// Edits to the machine that is planned for.
    pub what_if: WhatIf,
    report: Option<PlanReport>,
    error: Option<String>,
    unready: Option<String>,
    details: bool,
    scroll: usize,
}

impl PlanScreen {
    pub(in crate::ui) fn set(&mut self, result: Result<PlanReport, String>) {
        match result {
            Ok(report) => (self.report, self.error) = (Some(report), None),
            Err(e) => (self.report, self.error) = (None, Some(e)),
        }
    }
    pub(in crate::ui) fn clear(&mut self) {
        (self.report, self.error, self.scroll) = (None, None, 0);
    }
    /// Nothing has been planned yet, and nothing failed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.report.is_none() && self.error.is_none()
    }
    pub(in crate::ui) fn ready(&mut self, unready: Option<String>) {
        self.unready = unready;
    }
    /// Why what is planned could not be started now, however well it fits.
    #[must_use]
    pub fn unready(&self) -> Option<&str> {
        self.unready.as_deref()
    }
    /// The plan.
    #[must_use]
    pub fn report(&self) -> Option<&PlanReport> {
        self.report.as_ref()
    }
    /// Why there is none.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }
    pub(in crate::ui) fn focus(&mut self, _by: isize) {
        self.details = !self.details;
    }
    /// Moves the selection, or what is read, of which `most` lines can be scrolled away.
    pub(in crate::ui) fn step(&mut self, by: isize, most: usize) {
        if self.details {
            self.scroll = self.scroll.min(most).saturating_add_signed(by).min(most);
        } else {
            self.form.step(by, PLAN.len());
        }
    }
}

/// Colour of a verdict.
#[must_use]
pub fn verdict_tone(word: &str) -> Tone {
    match word {
        "RAM" => Tone::Good,
        "LORA_DISK" => Tone::Notice,
        "FULL_FT_DISK" => Tone::Costly,
        _ => Tone::Bad,
    }
}

type Section = (&'static str, Vec<Line<'static>>);
/// Writes a section of the plan for a width.
type Writer = fn(&PlanReport, &ModePlan, usize, Theme) -> Section;

/// Draws the screen.
pub fn draw(app: &App, frame: &mut Frame, area: Rect) {
    let theme = app.theme;
    let compact = super::super::frame::compact(area);
    let Parts { top, banner, warning, left, right } = parts(app, area);
    verdicts(app, frame, top, compact);
    if let Some(report) = &app.plan.report {
        app.plan.what_if.draw(frame, banner, &report.machine, theme);
    }
    if let Some(why) = app.plan.unready().filter(|_| warning.height > 0) {
        let text = cut(&format!(" ! {why}"), warning.width.into());
        put(frame, warning, Line::styled(text, theme.tone(Tone::Notice)));
    }
    let wide = wide(area);
    let form_height = PLAN.len() as u16 + if compact { 1 } else { 2 };
    let [settings, place] = Layout::vertical([Constraint::Max(form_height), Constraint::Fill(1)]).areas(left);
    let inner = pane(frame, settings, Line::styled("settings", theme.title()), !app.plan.details, compact, theme);
    form(frame, inner, &PLAN, &app.plan.form, &app.config, theme);
    match (&app.plan.report, &app.plan.error) {
        (Some(report), _) => {
            placement(app, frame, place, report, compact);
            details(app, frame, right, report, wide, compact);
        }
        (None, error) => {
            let inner = pane(frame, right, Line::styled("why", theme.title()), app.plan.details, compact, theme);
            let (text, style) = match error {
                Some(e) => (format!("✗ {e}"), theme.tone(Tone::Bad)),
                None if app.config.model.path.is_empty() => {
                    ("No model yet: pick one on Models (1).".into(), theme.dim())
                }
                None => ("planning…".into(), theme.dim()),
            };
            let text = wrap(&text, inner.width.into()).into_iter().map(|l| Line::styled(l, style)).collect();
            lines(frame, inner, text, 0);
        }
    }
}

/// Where the parts of the screen lie.
struct Parts {
    top: Rect,
    banner: Rect,
    warning: Rect,
    left: Rect,
    right: Rect,
}

fn wide(area: Rect) -> bool {
    area.width >= 120
}

fn parts(app: &App, area: Rect) -> Parts {
    let warns = app.plan.report.is_some() && app.plan.unready.is_some();
    let [top, banner, warning, rest] = Layout::vertical([
        Constraint::Length(if super::super::frame::compact(area) { 3 } else { 4 }),
        Constraint::Length(app.plan.what_if.height()),
        Constraint::Length(u16::from(warns)),
        Constraint::Fill(1),
    ])
    .areas(area);
    let left = if wide(area) { 44 } else { (area.width * 2 / 5).clamp(24, 40) };
    let [left, right] = Layout::horizontal([Constraint::Length(left), Constraint::Fill(1)]).areas(rest);
    Parts { top, banner, warning, left, right }
}

/// Most lines of the plan's text that can be scrolled away, in a screen of `area`.
#[must_use]
pub fn most_scroll(app: &App, area: Rect) -> usize {
    let Some(report) = &app.plan.report else { return 0 };
    let compact = super::super::frame::compact(area);
    columns(app, parts(app, area).right, report, wide(area), compact).iter().map(Column::most).max().unwrap_or(0)
}

fn verdicts(app: &App, frame: &mut Frame, area: Rect, compact: bool) {
    let theme = app.theme;
    let mut title = vec![Span::styled("verdict", theme.title())];
    if let Some(r) = &app.plan.report {
        title.push(Span::raw(format!(" {}  {} params, {}", cut(&r.model, 36), count(r.params), r.bytes)));
        let room = (area.width as usize).saturating_sub(Line::from(title.clone()).width() + 8);
        let on = format!("on {} · {}", r.machine.name, words::machine(r));
        if room >= 24 {
            title.push(Span::raw(format!("  {}", cut(on.trim_end_matches(" · "), room))));
        }
    }
    let inner = pane(frame, area, Line::from(title), false, compact, theme);
    let Some(report) = &app.plan.report else {
        put(frame, inner, Line::styled("no plan", theme.dim()));
        return;
    };
    for (row, (mode, name, plan)) in
        [(Mode::Lora, "LoRA", &report.modes.lora), (Mode::Full, "Full", &report.modes.full)].into_iter().enumerate()
    {
        let at = Rect { y: inner.y + row as u16, height: 1, ..inner };
        let chosen = app.config.train.mode == mode;
        let mut spans = vec![Span::styled(
            format!("{} {name} ", if chosen { "▸" } else { " " }),
            if chosen { theme.strong() } else { theme.dim() },
        )];
        if plan.trainable || plan.verdict == Verdict::Infeasible {
            spans.push(verdict_span(plan.verdict, theme));
        } else {
            // What can't be started is never green.
            spans.push(Span::raw(format!("  {:<12} forecast only ", plan.verdict.word())));
        }
        if plan.verdict == Verdict::Infeasible {
            spans.push(Span::raw(format!("  {}", plan.reasons.first().map_or("", String::as_str))));
        } else {
            let s = &plan.seconds_per_step;
            spans.push(Span::raw(format!("  {} to {} a step", secs(s.low), secs(s.high))));
            let slowest = words::resource(&s.resource).to_owned();
            // What has no room stands in the plan's text below.
            for more in [
                vec![Span::styled("  bottleneck: ", theme.dim()), Span::raw(slowest)],
                vec![Span::raw(format!("  {}", wear(plan)))],
            ] {
                let used = Line::from(spans.clone()).width() + Line::from(more.clone()).width();
                if used <= inner.width.into() {
                    spans.extend(more);
                }
            }
        }
        if row < inner.height as usize {
            put(frame, at, Line::from(spans));
        }
    }
}

/// `~ LORA_DISK`: a sign, a word and, where there is any, a colour.
#[must_use]
pub fn verdict_span(verdict: Verdict, theme: Theme) -> Span<'static> {
    let style = theme.tone(verdict_tone(verdict.word())).patch(theme.strong());
    Span::styled(format!("{} {:<12}", verdict.sign(), verdict.word()), style)
}

fn wear(plan: &ModePlan) -> String {
    match (plan.wear.written_per_step.0, plan.wear.steps_to_tbw) {
        (0, _) => "no SSD writes while training".into(),
        (_, Some(steps)) => {
            format!("writes {} a step: the SSD is rated for {} steps", plan.wear.written_per_step, count(steps))
        }
        (_, None) => format!("writes {} a step, the SSD's rating is unknown", plan.wear.written_per_step),
    }
}

fn placement(app: &App, frame: &mut Frame, area: Rect, report: &PlanReport, compact: bool) {
    if area.height < 2 {
        return;
    }
    let theme = app.theme;
    let plan = report.modes.of(app.config.train.mode);
    let tiers: Vec<TierName> = plan.placement.iter().map(|p| p.tier).collect();
    let mut title = vec![Span::styled("layers ", theme.title())];
    title.extend(counts(&tiers, area.width >= 40, report.machine.gpu.is_none(), theme));
    let inner = pane(frame, area, Line::from(title), false, compact, theme);
    let map = BlockMap { tiers: &tiers, states: &[], theme };
    let mut text = map.lines(inner.width.into(), inner.height.into());
    if text.len() + 2 <= inner.height as usize {
        let trains = format!("layers {} to {} train", plan.lowest_trainable, report.n_blocks.saturating_sub(1));
        text.push(Line::styled(trains, theme.dim()));
        text.push(Line::styled(format!("at most {} layers loaded at once", plan.residency), theme.dim()));
    }
    lines(frame, inner, text, 0);
}

/// A column of the plan's text: as boxes where all fits, else as one pane that scrolls.
struct Column {
    area: Rect,
    sections: Vec<Section>,
    boxed: bool,
    height: usize,
}

impl Column {
    fn of(app: &App, area: Rect, writers: &[Writer], report: &PlanReport, wide: bool, compact: bool) -> Column {
        let plan = report.modes.of(app.config.train.mode);
        let borders = if compact { 0 } else { 2 };
        let width = (area.width as usize).saturating_sub(borders);
        let sections: Vec<Section> =
            writers.iter().map(|f| f(report, plan, width, app.theme)).filter(|(_, body)| !body.is_empty()).collect();
        let tall: usize = sections.iter().map(|(_, body)| body.len() + 2).sum();
        let boxed = wide && tall <= area.height.into();
        Column { area, sections, boxed, height: (area.height as usize).saturating_sub(if compact { 1 } else { 2 }) }
    }

    fn most(&self) -> usize {
        let all: usize = self.sections.iter().map(|(_, body)| body.len() + 1).sum();
        if self.boxed { 0 } else { all.saturating_sub(self.height) }
    }

    fn draw(self, app: &App, frame: &mut Frame, compact: bool) {
        let theme = app.theme;
        if self.boxed {
            return stack(app, frame, self.area, self.sections);
        }
        let most = self.most();
        let inner = pane(frame, self.area, Line::styled("plan", theme.title()), app.plan.details, compact, theme);
        let mut text = Vec::new();
        for (title, body) in self.sections {
            text.push(Line::styled(title, theme.title()));
            text.extend(body);
        }
        let scroll = app.plan.scroll.min(most);
        lines(frame, inner, text, scroll);
        if scroll < most {
            let at =
                Rect { x: inner.right().saturating_sub(9), y: inner.bottom().saturating_sub(1), width: 9, height: 1 };
            put(frame, at, Line::styled(" ↓ tab j ", theme.strong()));
        }
    }
}

fn columns(app: &App, area: Rect, report: &PlanReport, wide: bool, compact: bool) -> Vec<Column> {
    let groups: Vec<Vec<Writer>> = if wide {
        vec![vec![why, weights, others, notes], vec![device_memory, host_memory, drive]]
    } else {
        vec![vec![why, weights, device_memory, host_memory, drive, others, notes]]
    };
    let areas = Layout::horizontal(groups.iter().map(|_| Constraint::Fill(1))).split(area);
    groups.iter().zip(areas.iter()).map(|(group, at)| Column::of(app, *at, group, report, wide, compact)).collect()
}

fn details(app: &App, frame: &mut Frame, area: Rect, report: &PlanReport, wide: bool, compact: bool) {
    for column in columns(app, area, report, wide, compact) {
        column.draw(app, frame, compact);
    }
}

fn stack(app: &App, frame: &mut Frame, area: Rect, sections: Vec<Section>) {
    let last = sections.len().saturating_sub(1);
    let heights = sections
        .iter()
        .enumerate()
        .map(|(i, (_, body))| if i == last { Constraint::Fill(1) } else { Constraint::Length(body.len() as u16 + 2) });
    let areas = Layout::vertical(heights).split(area);
    for ((title, body), at) in sections.into_iter().zip(areas.iter()) {
        let inner = pane(frame, *at, Line::styled(title, app.theme.title()), app.plan.details, false, app.theme);
        lines(frame, inner, body, 0);
    }
}

fn bullets(items: &[String], sign: &str, style: Style, width: usize) -> Vec<Line<'static>> {
    let mut out = Vec::new();
    for item in items {
        for (i, part) in wrap(item, width.saturating_sub(2)).into_iter().enumerate() {
            out.push(Line::styled(format!("{} {part}", if i == 0 { sign } else { " " }), style));
        }
    }
    out
}

fn why(_: &PlanReport, plan: &ModePlan, width: usize, theme: Theme) -> Section {
    let mut text = bullets(&plan.reasons, "•", Style::default(), width);
    if let Some(fix) = &plan.nearest_fix {
        text.extend(bullets(&[format!("nearest fix: {fix}")], "→", theme.tone(Tone::Notice), width));
    }
    ("why", text)
}

fn weights(report: &PlanReport, plan: &ModePlan, width: usize, theme: Theme) -> Section {
    let t = &plan.tiers;
    let all = (t.vram.0 + t.ram.0 + t.disk.0) as f64;
    let room = width.saturating_sub(1).min(60);
    let gpu = report.machine.gpu.is_some();
    let tiers = [
        (TierName::Vram, if gpu { "VRAM" } else { "ready" }, t.vram, '█'),
        (TierName::Ram, "RAM", t.ram, '▓'),
        (TierName::Disk, "disk", t.disk, '▒'),
    ];
    let mut text = Vec::new();
    let mut split = Vec::new();
    for (tier, _, bytes, glyph) in tiers {
        let cells = (ratio_of(bytes.0 as f64, all) * room as f64).round() as usize;
        split.push(Span::styled(glyph.to_string().repeat(cells), tier_style(tier, theme)));
    }
    text.push(Line::from(split));
    let legend = tiers.map(|(tier, name, bytes, glyph)| {
        let mut group = vec![Span::styled(format!("{glyph} "), tier_style(tier, theme))];
        group.extend(pair(name, bytes.to_string(), theme));
        group
    });
    text.extend(packed(legend.into(), 0, 2, width));
    let s = &plan.per_step;
    let ways: &[(&str, Bytes)] = if gpu {
        &[("disk reads", s.disk_read), ("RAM→GPU", s.h2d), ("GPU→RAM", s.d2h), ("written", s.written)]
    } else {
        &[("disk reads", s.disk_read), ("loaded", s.h2d), ("written", s.written)]
    };
    let label = "a step  ";
    let mut groups: Vec<Vec<Span>> = ways.iter().map(|(name, bytes)| pair(name, bytes.to_string(), theme)).collect();
    groups[0].insert(0, Span::styled(label, theme.dim()));
    text.extend(packed(groups, label.len(), 2, width));
    ("weights", text)
}

fn memory(plan: &VramPlan, width: usize, tone: Tone, theme: Theme) -> Vec<Line<'static>> {
    if plan.terms.is_empty() && plan.total == Bytes::ZERO {
        return Vec::new();
    }
    let over = plan.budget.0 > 0 && plan.total > plan.budget;
    let style = theme.tone(if over { Tone::Bad } else { tone });
    let ratio = ratio_of(plan.total.0 as f64, plan.budget.0 as f64);
    let text = format!(" {} of {}{}", plan.total, plan.budget, if over { " ✗ over" } else { "" });
    let mut line = bar(width.saturating_sub(text.len() + 1).min(30), ratio, None, style, theme);
    line.push(Span::raw(text));
    let mut out = vec![Line::from(line)];
    let mut terms: Vec<_> = plan.terms.iter().collect();
    terms.sort_by_key(|(_, b)| std::cmp::Reverse(b.0));
    let terms: Vec<(String, &Bytes)> = terms.into_iter().map(|(key, bytes)| (words::term(key), bytes)).collect();
    let name_width =
        terms.iter().map(|(n, _)| crate::ui::text::width(n)).max().unwrap_or(0).min(width.saturating_sub(11));
    for (name, bytes) in terms {
        out.push(Line::from(vec![
            Span::styled(format!("{} ", crate::ui::text::fit(&name, name_width)), theme.dim()),
            Span::raw(format!("{bytes:>9}")),
        ]));
    }
    out
}

fn device_memory(_: &PlanReport, plan: &ModePlan, width: usize, theme: Theme) -> Section {
    ("VRAM", memory(&plan.vram, width, Tone::Good, theme))
}

fn host_memory(_: &PlanReport, plan: &ModePlan, width: usize, theme: Theme) -> Section {
    ("RAM", memory(&plan.host, width, Tone::Ram, theme))
}

/// Space and wear of the drive, the ledger, the largest models.
fn drive(report: &PlanReport, plan: &ModePlan, width: usize, theme: Theme) -> Section {
    let mut text = memory(&plan.space, width, Tone::Notice, theme);
    let wear = wear_text(&plan.wear);
    let wear = if wear.contains("SSD") { wear } else { format!("SSD wear: {wear}") };
    text.extend(bullets(&[wear], "•", Style::default(), width));
    if let Some(ledger) = report.ledger.as_ref().filter(|l| !l.months.is_empty() || l.budget > Bytes::ZERO) {
        text.extend(bullets(&[ledger.line()], "•", theme.dim(), width));
    }
    if !report.ceilings.is_empty() {
        text.extend(bullets(&[words::ceilings(&report.ceilings)], "•", theme.dim(), width));
    }
    ("drive", text)
}

fn others(_: &PlanReport, plan: &ModePlan, width: usize, theme: Theme) -> Section {
    let mut text = Vec::new();
    for c in &plan.candidates {
        let head = format!("{:<5} {:>9}  {} a step  ", c.format, c.bytes.to_string(), secs(c.seconds_per_step));
        // These are forecasts: nothing here can be started, so nothing is green.
        text.push(Line::from(vec![Span::raw(format!("  {:<12}", c.verdict.word())), Span::raw(head)]));
        text.extend(bullets(std::slice::from_ref(&c.note), " ", theme.dim(), width));
        if let Some(fix) = &c.nearest_fix {
            text.extend(bullets(std::slice::from_ref(fix), "→", theme.dim(), width));
        }
    }
    ("other formats, forecast only", text)
}

fn notes(report: &PlanReport, plan: &ModePlan, width: usize, theme: Theme) -> Section {
    let mut text = bullets(&report.notes, "•", theme.dim(), width);
    let command = Some(&plan.command).filter(|c| !c.is_empty()).or(plan.fix_command.as_ref());
    for (i, part) in command.iter().flat_map(|c| shell_lines(c, width.saturating_sub(2))).enumerate() {
        text.push(Line::from(format!("{} {part}", if i == 0 { "$" } else { " " })));
    }
    ("notes and command", text)
}
