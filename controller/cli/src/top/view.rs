//! The screen of `deepres top` as lines of text. The heads and the cells are those of `deepres ps`.

use super::app::{About, App};
use super::history::{SPAN_NS, Shares};
use crate::ps::memory::kinds;
use crate::ps::order::Row;
use crate::ps::{cells, cut, heads, owed, phase, requests, time, width};
use clap::ValueEnum;
use deepres_model::admin::{AccountStatus, GpuStatus, TenantStatus};
use deepres_model::quantity::{Bytes, Percent};
use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

const PPM: u32 = 1_000_000;
const PPM_PER_PERCENT: u32 = 10_000;
const NS_PER_MIN: u64 = 60_000_000_000;

/// The columns of the narrowest screen, and the width of each. The bar and the history stand
/// between the two groups.
const LEFT: [(&str, usize); 3] = [("gpu", 3), ("entitled_ppm", 7), ("recent_share_ppm", 6)];
const RIGHT: [(&str, usize); 3] = [("wait_ns", 8), ("memory_bytes", 9), ("gate", 9)];
/// Further columns, as far as there is room.
const MORE: [&str; 6] =
    ["gpu_ns", "total_share_ppm", "refusals", "contended_ns", "memory_peak_bytes", "kernel_launches"];
/// The width of a further column.
const MORE_WIDTH: usize = 9;
/// The place of the owed share in a row's cells.
const OWED: usize = 1;
/// The width of the tenant's name, on a narrow and on a wide screen.
const NAME: [usize; 2] = [12, 24];
/// The width from which a screen is wide.
const WIDE: usize = 120;
/// The least width that the bar and the history keep beside further columns.
const GRAPHS: usize = 40;
/// The most lines about GPUs.
const MOST_GPUS: usize = 8;
/// The columns of the graphs in the lines about the selected tenant: one for each three seconds.
const GRAPH: usize = 60;
/// The most processes in the lines about the selected tenant.
const MOST_PROCESSES: usize = 3;
/// The width of the bars in the lines about GPUs.
const GPU_BAR: usize = 10;

/// The column of a share of zero.
const ZERO: char = '·';
/// Eighths of a column's height.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Parts of a bar: had, had beyond what is owed, owed and not had, neither. The shapes differ, so
/// that nobody needs the colours.
const PARTS: [(char, Color); 4] =
    [('█', Color::LightBlue), ('▓', Color::LightMagenta), ('░', Color::Yellow), (' ', Color::Reset)];

const HELP: &str = "\
up, down    select a tenant          e    set the tenant's share
PgUp, PgDn  ten tenants up or down   c    set the tenant's class
Home, End   the first, the last one  p    pause the tenant, or resume it
s           sort by the next column  Esc  end the filter and this list
/           filter by name           ?    this list
space       stop the screen, go on   q    end

SHARE     █ had in the last second   ▓ had beyond what is owed   ░ owed and not had
3 MIN     had in the last minutes (· nothing); below the list, owed and had
OWED      in parentheses while the tenant is idle and others have its part
Only administrators change tenants. `deepres ps --fields` explains each column.";

/// Draws the screen.
pub fn draw(app: &App, frame: &mut Frame<'_>, has_colours: bool) {
    let area = frame.area();
    let lines = lines(app, area.width.into(), Some(area.height.into()), has_colours);
    for (line, y) in lines.iter().zip(area.top()..area.bottom()) {
        frame.buffer_mut().set_line(area.left(), y, line, area.width);
    }
}

/// Returns the screen as lines. If the rows do not fit into `height`, the selected row stays in
/// sight. Without a height, all rows come, and no line about keys.
pub fn lines(app: &App, width: usize, height: Option<usize>, has_colours: bool) -> Vec<Line<'static>> {
    let foot = wrapped(&foot(app), width);
    let mut lines = vec![Line::styled(title(app), Modifier::BOLD)];
    let shown = app.status.gpus.iter().take(MOST_GPUS);
    lines.extend(shown.map(|gpu| gpu_line(gpu, width, has_colours)));
    let more = app.status.gpus.len().saturating_sub(MOST_GPUS);
    if more > 0 {
        lines.push(Line::raw(format!("{more} more GPUs")));
    }
    lines.push(Line::default());
    if app.has_help {
        lines.extend(HELP.lines().map(Line::raw));
    } else {
        let rows = app.rows();
        let place = app.place(&rows);
        let details = match place.and_then(|place| rows.get(place)) {
            Some(row) => details(app, row),
            None => lost(app).into_iter().collect(),
        };
        let columns = Columns::of(width);
        lines.push(Line::styled(columns.head(), Modifier::BOLD));
        // The rows leave a line before the details, and the last lines.
        let below = 1 + foot.len();
        let room = height
            .map_or(rows.len(), |height| height.saturating_sub(lines.len() + details.len() + below).max(1));
        let first = place.map_or(0, |place| (place + 1).saturating_sub(room));
        for (number, row) in rows.iter().enumerate().skip(first).take(room) {
            let line = columns.row(app, row, has_colours);
            let is_selected = Some(number) == place && height.is_some();
            lines.push(if is_selected { line.patch_style(Modifier::REVERSED) } else { line });
        }
        if rows.is_empty() {
            lines.push(Line::raw("no tenants; start one with `deepres run -- COMMAND`"));
        }
        lines.push(Line::default());
        lines.extend(details.iter().map(|line| Line::raw(cut(line, width))));
    }
    if let Some(height) = height {
        lines.resize(height.saturating_sub(foot.len()), Line::default());
        lines.extend(foot.into_iter().map(Line::raw));
    }
    lines
}

/// Breaks a text at blanks into lines of at most `columns`. A longer word has a line of its own.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![];
    let mut line = String::new();
    for word in text.split_inclusive(' ') {
        if !line.is_empty() && width(&line) + width(word.trim_end()) > columns {
            lines.push(std::mem::take(&mut line));
        }
        line += word;
    }
    lines.push(line);
    lines
}

/// Returns the first line.
fn title(app: &App) -> String {
    let status = &app.status;
    let order = app.order.to_possible_value();
    let mut title = format!(
        "deepres {} (daemon {}): {} tenants, {} unmanaged; by {}",
        status.daemon.version,
        status.daemon.pid,
        status.tenants.len(),
        status.unmanaged.len(),
        order.as_ref().map_or("", |order| order.get_name())
    );
    if !app.filter.is_empty() {
        title += &format!("; with `{}`", app.filter);
    }
    if app.is_still {
        title += "; STOPPED";
    }
    title
}

/// Returns the line about a GPU: its use in the last second, its memory and its holder. The line
/// takes at most `columns`.
fn gpu_line(gpu: &GpuStatus, columns: usize, has_colours: bool) -> Line<'static> {
    let used_ppm = gpu.recent_share_ppm;
    let mut line = Line::raw(format!("gpu {:<2} {:>5} ", gpu.index, percent(used_ppm)));
    bar(used_ppm, used_ppm, GPU_BAR, has_colours).into_iter().for_each(|part| line.push_span(part));
    let (held, memory) = (Bytes(gpu.held_bytes), Bytes(gpu.memory_bytes));
    let rest = format!("  {held} of {memory}  {}  {}", phase(gpu), gpu.name);
    line.push_span(cut(&rest, columns.saturating_sub(line.width())));
    line
}

/// Returns a share without decimals.
fn percent(ppm: u32) -> String {
    Percent(ppm.saturating_add(PPM_PER_PERCENT / 2) / PPM_PER_PERCENT * PPM_PER_PERCENT).to_string()
}

/// Returns a bar of the share that was had beside the share that is owed.
fn bar(had_ppm: u32, owed_ppm: u32, width: usize, has_colours: bool) -> Vec<Span<'static>> {
    let parts = |ppm: u32| (width * ppm.min(PPM) as usize + PPM as usize / 2) / PPM as usize;
    let (had, owed) = (parts(had_ppm), parts(owed_ppm));
    let lengths = [had.min(owed), had.saturating_sub(owed), owed.saturating_sub(had), width - had.max(owed)];
    let spans = PARTS.into_iter().zip(lengths).map(|((shape, colour), length)| {
        let style = if has_colours { Style::new().fg(colour) } else { Style::new() };
        Span::styled(shape.to_string().repeat(length), style)
    });
    spans.collect()
}

/// The columns for one width of the screen.
struct Columns {
    name: usize,
    bar: usize,
    history: usize,
    /// The further columns.
    more: &'static [&'static str],
}

impl Columns {
    fn of(width: usize) -> Self {
        let name = NAME[usize::from(width >= WIDE)];
        let fixed = LEFT.iter().chain(&RIGHT).map(|(_, width)| width + 1).sum::<usize>();
        // Two blanks stand before the bar and the history.
        let room = width.saturating_sub(name + fixed + 2);
        let count = (room.saturating_sub(GRAPHS) / (MORE_WIDTH + 1)).min(MORE.len());
        let graphs = room - count * (MORE_WIDTH + 1);
        let bar = graphs * 2 / 5;
        Self { name, bar, history: graphs - bar, more: &MORE[..count] }
    }

    fn fields(columns: &[(&'static str, usize)]) -> Vec<&'static str> {
        columns.iter().map(|(field, _)| *field).collect()
    }

    /// Returns the heads of the columns.
    fn head(&self) -> String {
        let name = heads::<TenantStatus>(&["name"]).concat();
        let minutes = format!("{} MIN", SPAN_NS / NS_PER_MIN);
        format!(
            "{}{} {:<bar$} {:<history$}{}{}",
            left(&name, self.name),
            aligned(&heads::<AccountStatus>(&Self::fields(&LEFT)), &LEFT),
            "SHARE",
            minutes,
            aligned(&heads::<AccountStatus>(&Self::fields(&RIGHT)), &RIGHT),
            self.further(&heads::<AccountStatus>(self.more)),
            bar = self.bar,
            history = self.history,
        )
    }

    /// Returns the line of a row.
    fn row(&self, app: &App, row: &Row<'_>, has_colours: bool) -> Line<'static> {
        let mut line = Line::raw(left(&row.tenant.name, self.name));
        let Some(account) = row.account else {
            line.push_span(" -");
            return line;
        };
        // One call for all columns, because each call looks at the whole account.
        let all = cells(account, &[Self::fields(&LEFT), Self::fields(&RIGHT), self.more.to_vec()].concat());
        let (owned, others) = all.split_at(LEFT.len());
        let (right, more) = others.split_at(RIGHT.len());
        let mut owned = owned.to_vec();
        owned[OWED] = owed(account, std::mem::take(&mut owned[OWED]));
        line.push_span(aligned(&owned, &LEFT) + " ");
        let Shares { had_ppm, owed_ppm } = Shares::of(account);
        let bar = bar(had_ppm, owed_ppm, self.bar, has_colours);
        bar.into_iter().for_each(|part| line.push_span(part));
        let shares = app.history.columns(&row.tenant.name, account.gpu, app.status.now_ns, self.history);
        line.push_span(" ".to_owned() + &graph(&shares, |shares| shares.had_ppm));
        line.push_span(aligned(right, &RIGHT));
        line.push_span(self.further(more));
        line
    }

    fn further(&self, cells: &[String]) -> String {
        cells.iter().map(|cell| format!(" {cell:>MORE_WIDTH$}")).collect()
    }
}

/// Returns cells in their columns, each aligned to the right after a blank.
fn aligned(cells: &[String], columns: &[(&str, usize)]) -> String {
    cells.iter().zip(columns).map(|(cell, (_, width))| format!(" {cell:>width$}")).collect()
}

/// Returns a text that takes exactly this number of columns of the screen.
fn left(text: &str, columns: usize) -> String {
    let fitting = cut(text, columns);
    let blanks = columns.saturating_sub(width(&fitting));
    fitting + &" ".repeat(blanks)
}

/// Returns one of the shares over time as columns.
fn graph(shares: &[Option<Shares>], share: fn(&Shares) -> u32) -> String {
    shares.iter().map(|shares| shares.as_ref().map_or(' ', |shares| height(share(shares)))).collect()
}

/// Returns the column of a share.
fn height(ppm: u32) -> char {
    if ppm == 0 {
        return ZERO;
    }
    let eighths = ppm.min(PPM) as usize * HEIGHTS.len() / PPM as usize;
    HEIGHTS[eighths.min(HEIGHTS.len() - 1)]
}

/// Returns lines about the selected row: grants, memory by kind, waits, the shares owed and had
/// over the last minutes, and processes.
fn details(app: &App, row: &Row<'_>) -> Vec<String> {
    let Row { tenant, account } = row;
    let granted =
        tenant.granted.map_or_else(|| format!("class {}", tenant.class), |granted| granted.to_string());
    let user = tenant.user.clone().unwrap_or_else(|| tenant.uid.to_string());
    let mut lines = vec![format!("{}: {granted}; user {user}", tenant.name)];
    if let Some(account) = account {
        let mean_ns = account.wait_ns.checked_div(account.waits).unwrap_or(0);
        let kinds = kinds(account).unwrap_or_else(|| "none".to_owned());
        lines.push(format!("  memory: {kinds}; {} refusals", account.refusals));
        lines.push(format!(
            "  {} waits of {} on average; contended {}, owed {}, had {}",
            account.waits,
            time(mean_ns),
            time(account.contended_ns),
            time(account.owed_ns),
            time(account.had_ns),
        ));
        let shares = app.history.columns(&tenant.name, account.gpu, app.status.now_ns, GRAPH);
        let minutes = SPAN_NS / NS_PER_MIN;
        lines.push(format!("  {minutes} min: owed {}", graph(&shares, |shares| shares.owed_ppm)));
        lines.push(format!("          had {}", graph(&shares, |shares| shares.had_ppm)));
        if let Some(served) = &account.requests {
            lines.push(format!("  {}", requests::figures(served)));
            lines.extend(served.late.as_ref().map(|late| format!("  {}", requests::delays(late))));
        }
    }
    let processes = tenant.sessions.iter().take(MOST_PROCESSES);
    lines.extend(processes.map(|session| format!("  {} {}", session.pid, session.client)));
    let more = tenant.sessions.len().saturating_sub(MOST_PROCESSES);
    if more > 0 {
        lines.push(format!("  {more} more processes"));
    }
    lines
}

/// Returns the line about a selected tenant that no row shows.
fn lost(app: &App) -> Option<String> {
    let (name, gpu) = app.selected.as_ref()?;
    Some(if name.contains(&app.filter) {
        format!("the selected tenant `{name}` is gone from GPU {gpu}; select another tenant")
    } else {
        format!("the selected tenant `{name}` does not match the filter; select another tenant")
    })
}

/// Returns the last line: the text that the user enters, the effect of the last key, or the keys.
fn foot(app: &App) -> String {
    match &app.prompt {
        Some(prompt) => {
            let about = match &prompt.about {
                About::Filter => "tenants with".to_owned(),
                About::Wish(tenant, key) => format!("{} of {tenant}", key.option()),
            };
            format!("{about}: {}_", prompt.text)
        }
        None if app.message.is_empty() => {
            "q end  ? help  s sort  / filter  e share  c class  p pause  space stop".to_owned()
        }
        None => app.message.clone(),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::ps::order::Order;
    use deepres_model::admin::{DaemonStatus, SessionStatus, Status};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::collections::BTreeMap;

    const NS_PER_S: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;
    /// The memory of a context.
    const CONTEXT_BYTES: u64 = 36 * MIB;
    /// The widths of the recorded screens of [`status`], columns. If a screen differs from its
    /// record, the test prints the new screen.
    const WIDTHS: [u16; 2] = [80, 200];
    const HEIGHT: u16 = 16;

    /// Returns a tenant with an account on GPU 0.
    fn tenant(name: &str, gate: &str, figures: AccountStatus) -> TenantStatus {
        let linear_bytes = figures.memory_bytes - CONTEXT_BYTES;
        let account = AccountStatus {
            entitled_by: "asked".to_owned(),
            memory_peak_bytes: figures.memory_bytes + 64 * MIB,
            memory_by_kind: BTreeMap::from([
                ("context".to_owned(), CONTEXT_BYTES),
                ("linear".to_owned(), linear_bytes),
            ]),
            gate: Some(gate.to_owned()),
            ..figures
        };
        let session = SessionStatus {
            id: 1,
            pid: 4712,
            container: None,
            client: "python train.py".to_owned(),
            lost_ways: 0,
            gpus: Vec::new(),
        };
        TenantStatus {
            name: name.to_owned(),
            user: Some("ada".to_owned()),
            class: "fair".to_owned(),
            gpus: vec![account],
            sessions: vec![session],
            ..TenantStatus::default()
        }
    }

    /// Returns a status with three tenants: two compute in turns, and the third has just been paused.
    pub fn status() -> Status {
        let train = AccountStatus {
            entitled_ppm: Some(700_000),
            recent_share_ppm: 679_000,
            total_share_ppm: 261_000,
            gpu_ns: 46_900_000_000,
            wait_ns: 44_600_000_000,
            waits: 412,
            kernel_launches: 3_207,
            contended_ns: 92 * NS_PER_S,
            owed_ns: 47_100_000_000,
            had_ns: 45_800_000_000,
            memory_bytes: 836 * MIB,
            ..AccountStatus::default()
        };
        let finetune = AccountStatus {
            entitled_ppm: Some(300_000),
            recent_share_ppm: 317_000,
            total_share_ppm: 223_000,
            gpu_ns: 40_200_000_000,
            wait_ns: 71_300_000_000,
            kernel_launches: 2_741,
            contended_ns: 91_500_000_000,
            memory_bytes: 536 * MIB,
            ..AccountStatus::default()
        };
        let nightly = AccountStatus {
            entitled_ppm: Some(100_000),
            recent_share_ppm: 4_000,
            total_share_ppm: 69_000,
            gpu_ns: 12_400_000_000,
            wait_ns: 30_800_000_000,
            kernel_launches: 848,
            contended_ns: 33_700_000_000,
            memory_bytes: 236 * MIB,
            is_lent: true,
            ..AccountStatus::default()
        };
        let nightly = TenantStatus { paused: true, ..tenant("nightly", "paused", nightly) };
        let gpu = GpuStatus {
            name: "Simulated H200".to_owned(),
            memory_bytes: 141 << 30,
            held_bytes: (836 + 536 + 236) * MIB,
            recent_share_ppm: PPM,
            phase: "leased".to_owned(),
            holder: Some("train".to_owned()),
            ..GpuStatus::default()
        };
        Status {
            now_ns: 1_000 * NS_PER_S,
            daemon: DaemonStatus { pid: 4711, version: "0.1.0".to_owned(), ..DaemonStatus::default() },
            gpus: vec![gpu],
            tenants: vec![tenant("finetune", "closed", finetune), nightly, tenant("train", "leased", train)],
            ..Status::default()
        }
    }

    /// Returns the screen as the backend shows it.
    fn screen(app: &App, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(app, frame, true)).unwrap();
        terminal.backend().to_string()
    }

    /// Returns the state after three minutes, in which the shares rose. The shares that the tenants
    /// were owed rose later than the shares that they had.
    fn app() -> App {
        let mut app = App::new(Status::default(), Order::Owed);
        for looks in (0..90u32).rev() {
            let mut status = status();
            status.now_ns -= u64::from(looks) * 2 * NS_PER_S;
            for (step, tenant) in (1..).zip(&mut status.tenants) {
                let account = &mut tenant.gpus[0];
                account.recent_share_ppm /= 1 + looks * step / 40;
                account.entitled_ppm =
                    account.entitled_ppm.map(|owed_ppm| owed_ppm / (1 + looks * step / 20));
            }
            app.look(status);
        }
        app
    }

    #[test]
    fn screens_of_80_and_200_columns_look_as_recorded() {
        for width in WIDTHS {
            let recorded = format!("{}/src/top/screens/{width}.txt", env!("CARGO_MANIFEST_DIR"));
            let screen = screen(&app(), width, HEIGHT);
            assert_eq!(screen, std::fs::read_to_string(recorded).unwrap(), "{width} columns:\n{screen}");
        }
    }

    #[test]
    fn a_share_of_zero_looks_different_from_a_small_share_and_from_an_unknown_one() {
        let shares = |had_ppm| Some(Shares { had_ppm, owed_ppm: 0 });
        let columns = [None, shares(0), shares(1), shares(120_000), shares(130_000), shares(PPM)];
        assert_eq!(graph(&columns, |shares| shares.had_ppm), " ·▁▁▂█");
    }

    #[test]
    fn the_readme_shows_the_screen_of_80_columns() {
        let folder = env!("CARGO_MANIFEST_DIR");
        let screen = std::fs::read_to_string(format!("{folder}/src/top/screens/80.txt")).unwrap();
        let readme = std::fs::read_to_string(format!("{folder}/../../README.md")).unwrap();
        // The recorded lines stand in quotation marks.
        let lines = screen.lines().map(|line| line.trim_matches('"').trim_end());
        for line in lines.filter(|line| !line.is_empty()) {
            assert!(readme.contains(&format!("\n    {line}\n")), "not in the README: {line}");
        }
    }

    #[test]
    fn the_selected_row_stays_in_sight_on_a_low_screen() {
        let mut app = app();
        app.selected = Some(("nightly".to_owned(), 0));
        let screen = screen(&app, 80, 10);
        let rows = || screen.lines().filter(|line| line.contains("MiB") && line.contains(" 0 "));
        assert!(rows().any(|row| row.contains("nightly")), "{screen}");
        assert!(!rows().any(|row| row.contains("train ")), "{screen}");
    }

    #[test]
    fn the_screen_says_that_the_selected_tenant_is_gone() {
        let mut app = app();
        app.selected = Some(("nightly".to_owned(), 0));
        assert!(!screen(&app, 80, HEIGHT).contains("select another tenant"));
        app.status.tenants.retain(|tenant| tenant.name != "nightly");
        assert!(screen(&app, 80, HEIGHT).contains("`nightly` is gone from GPU 0; select another tenant"));
        app.filter = "train".to_owned();
        assert!(screen(&app, 80, HEIGHT).contains("`nightly` does not match the filter; select another"));
    }

    #[test]
    fn one_frame_for_scripts_has_all_rows_no_keys_and_no_line_beyond_its_width() {
        let mut app = app();
        let status = &mut app.status;
        status.gpus[0].holder = Some("vision/train-0/main".repeat(2));
        status.tenants[2].sessions[0].client = "python train.py ".repeat(10);
        let lines = lines(&app, 80, None, false);
        let text: Vec<String> = lines.iter().map(ToString::to_string).collect();
        assert!(text.iter().all(|line| Span::raw(line.as_str()).width() <= 80), "{text:?}");
        assert!(
            ["finetune", "nightly", "train"]
                .iter()
                .all(|name| text.iter().any(|line| line.starts_with(name)))
        );
        assert!(!text.iter().any(|line| line.contains("q end")));
    }

    #[test]
    fn help_and_prompts_show_and_a_wide_name_keeps_the_columns() {
        let mut app = app();
        app.has_help = true;
        app.prompt = Some(super::super::app::Prompt { about: About::Filter, text: "tr".to_owned() });
        let screen = screen(&app, 80, 20);
        assert!(
            screen.contains("set the tenant's share") && screen.contains("tenants with: tr_"),
            "{screen}"
        );
        assert_eq!(left("ab", 3), "ab ");
        assert_eq!(left("\u{4e2d}\u{4e2d}\u{4e2d}", 4), "\u{4e2d}… ");
    }

    #[test]
    fn a_long_message_takes_more_lines_and_loses_no_word() {
        let mut app = app();
        let message = "finetune: you may not administer the daemon at /run/deepres/admin.sock, because only root and the daemon's user may; try sudo";
        app.say(message.to_owned());
        let screen = screen(&app, 80, HEIGHT);
        assert!(screen.contains("try sudo"), "{screen}");
        let lines = wrapped(message, 80);
        assert!(lines.len() == 2 && lines.iter().all(|line| width(line.trim_end()) <= 80), "{lines:?}");
        assert_eq!(lines.concat(), message);
        assert_eq!(wrapped("", 80), [""]);
    }
}
