//! Plan: the verdict of each mode, why, what moves and what it costs, beside the settings that change it.

use super::form::{FormState, draw as form};
use super::whatif::WhatIf;
use crate::config::RunConfig;
use crate::event::TierName;
use crate::plan::{Ceiling, ModePlan, PlanReport, Verdict, VramPlan, wear_text};
use crate::ui::app::App;
use crate::ui::form::PLAN;
use crate::ui::text::cut;
use crate::ui::theme::{Theme, Tone};
use crate::ui::widgets::blockmap::{BlockMap, counts, tier_style};
use crate::ui::widgets::{bar, lines, pair, pane, put, wrap};
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
    pub(in crate::ui) fn step(&mut self, by: isize) {
        if self.details {
            self.scroll = self.scroll.saturating_add_signed(by).min(200);
        } else {
            self.form.step(by, PLAN.len());
        }
    }
}

/// The plan of the mode that `config` asks for.
#[must_use]
pub fn chosen<'a>(config: &RunConfig, plan: &'a PlanReport) -> &'a ModePlan {
    if config.train.mode == "full" { &plan.modes.full } else { &plan.modes.lora }
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
    let [top, banner, rest] = Layout::vertical([
        Constraint::Length(if compact { 3 } else { 4 }),
        Constraint::Length(app.plan.what_if.height()),
        Constraint::Fill(1),
    ])
    .areas(area);
    verdicts(app, frame, top, compact);
    if let Some(report) = &app.plan.report {
        app.plan.what_if.draw(frame, banner, &report.machine, theme);
    }
    let wide = area.width >= 120;
    let left = if wide { 44 } else { (area.width * 2 / 5).clamp(24, 40) };
    let [left, right] = Layout::horizontal([Constraint::Length(left), Constraint::Fill(1)]).areas(rest);
    let form_height = PLAN.len() as u16 + if compact { 1 } else { 2 };
    let [settings, place] = Layout::vertical([Constraint::Max(form_height), Constraint::Fill(1)]).areas(left);
    let inner = pane(frame, settings, Line::styled("settings", theme.title()), !app.plan.details, compact, theme);
    form(frame, inner, PLAN, &app.plan.form, &app.config, theme);
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

fn verdicts(app: &App, frame: &mut Frame, area: Rect, compact: bool) {
    let theme = app.theme;
    let mut title = vec![Span::styled("verdict", theme.title())];
    if let Some(r) = &app.plan.report {
        let facts = format!(" {}  {} params, {}", cut(&r.model, 36), count(r.params), r.bytes);
        title.push(Span::styled(facts, theme.dim()));
        if area.width >= 100 {
            title.push(Span::styled(
                format!("  on {} ({})", cut(&r.machine.name, 30), cut(&r.machine.source, 40)),
                theme.dim(),
            ));
        }
    }
    let inner = pane(frame, area, Line::from(title), false, compact, theme);
    let Some(report) = &app.plan.report else {
        put(frame, inner, Line::styled("no plan", theme.dim()));
        return;
    };
    for (row, (mode, name, plan)) in
        [("lora", "LoRA", &report.modes.lora), ("full", "Full", &report.modes.full)].into_iter().enumerate()
    {
        let at = Rect { y: inner.y + row as u16, height: 1, ..inner };
        let chosen = app.config.train.mode == mode;
        let mut spans = vec![Span::styled(
            format!("{} {name} ", if chosen { "▸" } else { " " }),
            if chosen { theme.strong() } else { theme.dim() },
        )];
        spans.push(verdict_span(plan.verdict, theme));
        if plan.verdict == Verdict::Infeasible {
            spans.push(Span::styled(format!("  {}", plan.reasons.first().map_or("", String::as_str)), theme.dim()));
        } else {
            let s = &plan.seconds_per_step;
            spans.push(Span::raw(format!("  {} to {} a step", secs(s.low), secs(s.high))));
            spans.push(Span::styled(format!("  bound by {}", s.resource), theme.dim()));
            spans.push(Span::styled(format!("  {}", wear(plan)), theme.dim()));
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
        (0, _) => "writes nothing".into(),
        (_, Some(steps)) => {
            format!("writes {} a step, {} to the drive's rating", plan.wear.written_per_step, count(steps))
        }
        (_, None) => format!("writes {} a step, the drive's rating is unknown", plan.wear.written_per_step),
    }
}

fn placement(app: &App, frame: &mut Frame, area: Rect, report: &PlanReport, compact: bool) {
    if area.height < 2 {
        return;
    }
    let theme = app.theme;
    let plan = chosen(&app.config, report);
    let tiers: Vec<TierName> = plan.placement.iter().map(|p| p.tier).collect();
    let mut title = vec![Span::styled("blocks ", theme.title())];
    title.extend(counts(&tiers, theme));
    let inner = pane(frame, area, Line::from(title), false, compact, theme);
    let map = BlockMap { tiers: &tiers, states: &[], theme };
    let mut text = map.lines(inner.width.into(), inner.height.into());
    if text.len() + 2 <= inner.height as usize {
        let trains = format!("blocks {} to {} train", plan.lowest_trainable, report.n_blocks.saturating_sub(1));
        text.push(Line::styled(trains, theme.dim()));
        text.push(Line::styled(format!("at most {} on the device at once", plan.residency), theme.dim()));
    }
    lines(frame, inner, text, 0);
}

fn details(app: &App, frame: &mut Frame, area: Rect, report: &PlanReport, wide: bool, compact: bool) {
    let theme = app.theme;
    let plan = chosen(&app.config, report);
    let groups: Vec<Vec<Writer>> = if wide {
        vec![vec![why, weights, others], vec![device_memory, host_memory, drive, notes]]
    } else {
        vec![vec![why, weights, device_memory, host_memory, drive, others, notes]]
    };
    let columns = Layout::horizontal(groups.iter().map(|_| Constraint::Fill(1))).split(area);
    for (group, column) in groups.into_iter().zip(columns.iter()) {
        if wide {
            stack(app, frame, *column, &group, report, plan);
            continue;
        }
        let inner = pane(frame, *column, Line::styled("plan", theme.title()), app.plan.details, compact, theme);
        let mut text = Vec::new();
        for section in group {
            let (title, body) = section(report, plan, inner.width.into(), theme);
            if !body.is_empty() {
                text.push(Line::styled(title, theme.title()));
                text.extend(body);
            }
        }
        let most = text.len().saturating_sub(inner.height.into());
        let scroll = app.plan.scroll.min(most);
        lines(frame, inner, text, scroll);
        if scroll < most {
            let at =
                Rect { x: inner.right().saturating_sub(9), y: inner.bottom().saturating_sub(1), width: 9, height: 1 };
            put(frame, at, Line::styled(" ↓ tab j ", theme.dim()));
        }
    }
}

fn stack(app: &App, frame: &mut Frame, area: Rect, group: &[Writer], report: &PlanReport, plan: &ModePlan) {
    let width = (area.width as usize).saturating_sub(2);
    let sections: Vec<Section> =
        group.iter().map(|f| f(report, plan, width, app.theme)).filter(|(_, body)| !body.is_empty()).collect();
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

fn weights(_: &PlanReport, plan: &ModePlan, width: usize, theme: Theme) -> Section {
    let t = &plan.tiers;
    let all = (t.vram.0 + t.ram.0 + t.disk.0) as f64;
    let room = width.saturating_sub(1).min(60);
    let tiers = [
        (TierName::Vram, "VRAM", t.vram, '█'),
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
    let mut line = Vec::new();
    for (tier, name, bytes, glyph) in tiers {
        line.push(Span::styled(format!("{glyph} "), tier_style(tier, theme)));
        line.push(Span::styled(format!("{name} "), theme.dim()));
        line.push(Span::raw(format!("{bytes}  ")));
    }
    text.push(Line::from(line));
    let s = &plan.per_step;
    let mut line = vec![Span::styled("a step  ", theme.dim())];
    for (name, bytes) in [("read", s.disk_read), ("to GPU", s.h2d), ("back", s.d2h), ("written", s.written)] {
        line.extend(pair(name, format!("{bytes}  "), theme));
    }
    let narrow = Line::from(line.clone()).width() > width;
    if narrow {
        text.push(Line::from(line[..5].to_vec()));
        let mut rest = vec![Span::raw("        ")];
        rest.extend_from_slice(&line[5..]);
        text.push(Line::from(rest));
    } else {
        text.push(Line::from(line));
    }
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
    let name_width =
        terms.iter().map(|(n, _)| crate::ui::text::width(n)).max().unwrap_or(0).min(width.saturating_sub(11));
    for (name, bytes) in terms {
        out.push(Line::from(vec![
            Span::styled(format!("{} ", crate::ui::text::fit(&name.replace('_', " "), name_width)), theme.dim()),
            Span::raw(format!("{bytes:>9}")),
        ]));
    }
    out
}

fn device_memory(_: &PlanReport, plan: &ModePlan, width: usize, theme: Theme) -> Section {
    ("device memory", memory(&plan.vram, width, Tone::Good, theme))
}

fn host_memory(_: &PlanReport, plan: &ModePlan, width: usize, theme: Theme) -> Section {
    ("host memory", memory(&plan.host, width, Tone::Ram, theme))
}

/// Space and wear of the drive, the ledger, the largest models.
fn drive(report: &PlanReport, plan: &ModePlan, width: usize, theme: Theme) -> Section {
    let mut text = memory(&plan.space, width, Tone::Notice, theme);
    text.extend(bullets(&[wear_text(&plan.wear)], "•", Style::default(), width));
    if let Some(ledger) = report.ledger.as_ref().filter(|l| !l.months.is_empty() || l.budget > Bytes::ZERO) {
        text.extend(bullets(&[ledger.line()], "•", theme.dim(), width));
    }
    let largest = |c: &Ceiling| format!("{} {} ({})", c.mode.replace('_', " "), count(c.params), c.limit);
    if !report.ceilings.is_empty() {
        let list: Vec<String> = report.ceilings.iter().map(largest).collect();
        text.extend(bullets(&[format!("largest models here: {}", list.join(", "))], "•", theme.dim(), width));
    }
    ("drive", text)
}

fn others(_: &PlanReport, plan: &ModePlan, width: usize, theme: Theme) -> Section {
    let mut text = Vec::new();
    for c in &plan.candidates {
        let head = format!("{:<5} {:>9}  {} a step  ", c.format, c.bytes.to_string(), secs(c.seconds_per_step));
        text.push(Line::from(vec![verdict_span(c.verdict, theme), Span::raw(head)]));
        text.extend(bullets(std::slice::from_ref(&c.note), " ", theme.dim(), width));
        if let Some(fix) = &c.nearest_fix {
            text.extend(bullets(std::slice::from_ref(fix), "→", theme.dim(), width));
        }
    }
    ("other formats", text)
}

fn notes(report: &PlanReport, plan: &ModePlan, width: usize, theme: Theme) -> Section {
    let mut text = bullets(&report.notes, "•", theme.dim(), width);
    if !plan.command.is_empty() {
        text.extend(bullets(std::slice::from_ref(&plan.command), "$", theme.dim(), width));
    } else if let Some(fixed) = &plan.fix_command {
        text.extend(bullets(std::slice::from_ref(fixed), "$", theme.dim(), width));
    }
    ("notes", text)
}
