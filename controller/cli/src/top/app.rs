//! The state of the screen of `deepres top`, and the effect of each key.

use super::history::History;
use crate::ps::order::{Order, Row};
use deepres_model::admin::{Request, Status};
use deepres_model::wish::{Key, Wish, parse};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The rows by which the keys for pages move: about the rows of a screen with 24 lines.
const PAGE: isize = 10;

/// The state of the screen.
#[derive(Debug)]
pub struct App {
    /// The status at the last look.
    pub status: Status,
    /// The shares of the last minutes.
    pub history: History,
    /// The order of the tenants.
    pub order: Order,
    /// A part of the names of the tenants to show.
    pub filter: String,
    /// The tenant and the GPU that the user selected.
    pub selected: Option<(String, usize)>,
    /// The text that the user enters now.
    pub prompt: Option<Prompt>,
    /// The effect of the last key; empty without an effect to tell.
    pub message: String,
    /// Whether the screen stands still.
    pub is_still: bool,
    /// Whether the screen shows the list of keys.
    pub has_help: bool,
}

/// A text that the user enters.
#[derive(Debug)]
pub struct Prompt {
    /// The purpose of the text: a filter of the tenants, or the value of a tenant's wish.
    pub about: About,
    /// The text.
    pub text: String,
}

/// The purpose of a text that the user enters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum About {
    /// The filter.
    Filter,
    /// A wish of this tenant.
    Wish(String, Key),
}

/// An order of the user that concerns more than the screen.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Ends the command.
    End,
    /// Stops the command until the shell lets it go on.
    Stop,
    /// Draws the whole screen anew, because another program wrote on it.
    Redraw,
    /// Pauses the tenant of this name, or ends its pause.
    Pause(String),
    /// Sends a request about the tenant of this name.
    Ask(String, Request),
}

impl App {
    /// Returns the state of the screen at the first look.
    pub fn new(status: Status, order: Order) -> Self {
        let mut history = History::default();
        history.note(&status);
        Self {
            status,
            history,
            order,
            filter: String::new(),
            selected: None,
            prompt: None,
            message: String::new(),
            is_still: false,
            has_help: false,
        }
    }

    /// Takes in a new status.
    pub fn look(&mut self, status: Status) {
        self.history.note(&status);
        if !self.is_still {
            self.status = status;
        }
    }

    /// Shows a message until the next key.
    pub fn say(&mut self, message: String) {
        self.message = message;
    }

    /// Returns the rows that the filter leaves, in order.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = self.order.rows(&self.status);
        rows.retain(|row| row.tenant.name.contains(&self.filter));
        rows
    }

    /// Returns the place of the selected row among the rows; `None` if no row shows the selected
    /// tenant. Before the first selection, the first row is the selected row.
    pub fn place(&self, rows: &[Row<'_>]) -> Option<usize> {
        match &self.selected {
            Some(selected) => rows.iter().position(|row| *selected == row.key()),
            None => (!rows.is_empty()).then_some(0),
        }
    }

    /// Heeds a key. Returns the action of the key, if it has one.
    pub fn press(&mut self, key: KeyEvent) -> Option<Action> {
        self.message.clear();
        if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) {
            // Such a key is another key than its letter alone: Ctrl-P must not pause a tenant.
            return match key.code {
                KeyCode::Char('c') => Some(Action::End),
                KeyCode::Char('z') => Some(Action::Stop),
                KeyCode::Char('l') => Some(Action::Redraw),
                _ => None,
            };
        }
        if let Some(prompt) = self.prompt.take() {
            return self.enter(prompt, key.code);
        }
        match key.code {
            KeyCode::Char('q') => return Some(Action::End),
            KeyCode::Char('?') => self.has_help = !self.has_help,
            KeyCode::Esc => (self.has_help, self.filter) = (false, String::new()),
            KeyCode::Char(' ') => self.is_still = !self.is_still,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('/') => {
                self.prompt = Some(Prompt { about: About::Filter, text: self.filter.clone() })
            }
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::PageDown => self.select(PAGE),
            KeyCode::PageUp => self.select(-PAGE),
            KeyCode::End => self.select(isize::MAX),
            KeyCode::Home => self.select(isize::MIN),
            KeyCode::Char('e') => self.ask_for(Key::Share),
            KeyCode::Char('c') => self.ask_for(Key::Class),
            KeyCode::Char('p') => {
                return self.row().map(|row| Action::Pause(row.tenant.name.clone()));
            }
            _ => {}
        }
        None
    }

    /// Heeds a key while the user enters a text.
    fn enter(&mut self, mut prompt: Prompt, key: KeyCode) -> Option<Action> {
        match key {
            KeyCode::Esc => {
                if prompt.about == About::Filter {
                    self.filter.clear();
                }
                return None;
            }
            KeyCode::Enter => {
                let About::Wish(tenant, key) = prompt.about else { return None };
                return match parse(key.kind(), prompt.text.trim()) {
                    Ok(value) => {
                        let mut wish = Wish::default();
                        wish.set(key, value);
                        Some(Action::Ask(tenant.clone(), Request::set(tenant, wish)))
                    }
                    Err(error) => {
                        self.say(error.to_string());
                        None
                    }
                };
            }
            KeyCode::Backspace => drop(prompt.text.pop()),
            KeyCode::Char(letter) => prompt.text.push(letter),
            _ => {}
        }
        if prompt.about == About::Filter {
            self.filter.clone_from(&prompt.text);
        }
        self.prompt = Some(prompt);
        None
    }

    /// Selects the row `by` rows below the selected row; the first row if no row is selected.
    fn select(&mut self, by: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let place = self.place(&rows).map_or(0, |place| place.saturating_add_signed(by).min(last));
        if let Some(row) = rows.get(place) {
            self.selected = Some(row.key());
        }
    }

    /// Returns the selected row.
    fn row(&self) -> Option<Row<'_>> {
        let rows = self.rows();
        rows.get(self.place(&rows)?).copied()
    }

    /// Asks the user for a wish of the selected tenant.
    fn ask_for(&mut self, key: Key) {
        let tenant = self.row().map(|row| row.tenant.name.clone());
        self.prompt = tenant.map(|tenant| Prompt { about: About::Wish(tenant, key), text: String::new() });
    }
}

/// Returns the request that pauses the tenant of this name, or ends its pause; `None` if the status
/// has no such tenant.
pub fn pause(status: &Status, name: &str) -> Option<Request> {
    let found = status.tenants.iter().find(|tenant| tenant.name == name)?;
    let tenant = name.to_owned();
    Some(if found.paused || found.suspended { Request::Resume { tenant } } else { Request::Pause { tenant } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::tests::status;
    use deepres_model::admin::TenantStatus;

    /// Presses keys one after the other: each character, `\n` for Enter and `\x1b` for Esc.
    fn press(app: &mut App, keys: &str) -> Option<Action> {
        let code = |key| match key {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            key => KeyCode::Char(key),
        };
        keys.chars().fold(None, |_, key| app.press(KeyEvent::new(code(key), KeyModifiers::NONE)))
    }

    fn names(app: &App) -> Vec<&str> {
        app.rows().iter().map(|row| row.tenant.name.as_str()).collect()
    }

    #[test]
    fn a_key_with_control_or_alt_is_no_letter() {
        let mut app = App::new(status(), Order::default());
        for modifiers in [KeyModifiers::CONTROL, KeyModifiers::ALT] {
            for letter in ['p', 'e', 'q', 's', '/'] {
                assert_eq!(app.press(KeyEvent::new(KeyCode::Char(letter), modifiers)), None);
            }
        }
        assert!(app.prompt.is_none() && app.order == Order::default());
        press(&mut app, "/tr");
        app.press(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL));
        assert_eq!(app.filter, "tr");
        for (letter, action) in [('c', Action::End), ('z', Action::Stop), ('l', Action::Redraw)] {
            let key = KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
            assert_eq!(app.press(key), Some(action));
        }
    }

    #[test]
    fn keys_move_by_pages_and_to_both_ends() {
        let mut status = status();
        let tenant = status.tenants[0].clone();
        status.tenants =
            (0..50).map(|n| TenantStatus { name: format!("{n:02}"), ..tenant.clone() }).collect();
        let mut app = App::new(status, Order::default());
        let mut selected = |code| {
            app.press(KeyEvent::new(code, KeyModifiers::NONE));
            app.selected.clone().unwrap().0
        };
        assert_eq!(selected(KeyCode::PageDown), "10");
        assert_eq!(selected(KeyCode::End), "49");
        assert_eq!(selected(KeyCode::PageUp), "39");
        assert_eq!(selected(KeyCode::Home), "00");
    }

    #[test]
    fn keys_sort_filter_and_select() {
        let mut app = App::new(status(), Order::default());
        assert_eq!(names(&app), ["finetune", "nightly", "train"]);
        press(&mut app, "s");
        assert_eq!(names(&app)[0], "train", "the most owed first");
        press(&mut app, "/tune\n");
        assert_eq!(names(&app), ["finetune"]);
        press(&mut app, "\x1bj");
        assert_eq!(app.selected.as_ref().map(|(name, _)| name.as_str()), Some(names(&app)[1]));
        press(&mut app, "jjjjk");
        assert_eq!(app.selected.as_ref().map(|(name, _)| name.as_str()), Some(names(&app)[1]));
        assert_eq!(press(&mut app, "q"), Some(Action::End));
    }

    #[test]
    fn keys_change_the_selected_tenant() {
        let mut app = App::new(status(), Order::default());
        let set = |wish| Action::Ask("finetune".to_owned(), Request::set("finetune", wish));
        let half = Wish { share_ppm: Some(500_000), ..Wish::default() };
        assert_eq!(press(&mut app, "e50%\n"), Some(set(half)));
        assert_eq!(press(&mut app, "cnone\n"), None);
        assert!(app.message.contains("best-effort"), "{}", app.message);
        let Some(Action::Ask(_, Request::Set { wish, .. })) = press(&mut app, "cfair\n") else {
            panic!("the key sets the class")
        };
        assert!(wish.class.is_some() && app.message.is_empty());
        assert_eq!(press(&mut app, "p"), Some(Action::Pause("finetune".to_owned())));
        assert_eq!(press(&mut app, "e1\x1b"), None);
        assert!(app.prompt.is_none());
        assert_eq!(press(&mut app, "jp"), Some(Action::Pause("nightly".to_owned())));
    }

    #[test]
    fn the_latest_status_decides_between_pause_and_resumption() {
        let tenant = || "finetune".to_owned();
        let mut status = status();
        assert_eq!(pause(&status, "finetune"), Some(Request::Pause { tenant: tenant() }));
        status.tenants[0].paused = true;
        assert_eq!(pause(&status, "finetune"), Some(Request::Resume { tenant: tenant() }));
        status.tenants.remove(0);
        assert_eq!(pause(&status, "finetune"), None);
    }

    #[test]
    fn no_key_changes_another_tenant_when_the_selected_tenant_is_gone() {
        let mut app = App::new(status(), Order::default());
        press(&mut app, "j");
        let mut status = status();
        status.tenants.retain(|tenant| tenant.name != "nightly");
        app.look(status);
        assert_eq!(press(&mut app, "p"), None);
        assert!(press(&mut app, "e").is_none() && app.prompt.is_none());
        assert_eq!(press(&mut app, "jp"), Some(Action::Pause("finetune".to_owned())));
        // The filter hides the selected tenant.
        assert_eq!(press(&mut app, "/train\np"), None);
        assert_eq!(press(&mut app, "jp"), Some(Action::Pause("train".to_owned())));
    }

    #[test]
    fn a_screen_that_stands_still_goes_on_at_the_same_key() {
        let mut app = App::new(status(), Order::default());
        press(&mut app, " ");
        app.look(Status::default());
        assert_eq!(app.status.tenants.len(), 3);
        press(&mut app, " ");
        app.look(Status::default());
        assert!(app.status.tenants.is_empty());
    }
}
