//! Text of HTML. The page is well-formed XML as well, so that a test can read it.

use std::fmt::Write;

use super::units::three_digits;
use crate::verdict::{Spread, Verdict, ratio};

/// Nothing to show.
pub const DASH: &str = "\u{2013}";

/// A text as HTML shows it, whatever is in it. Characters that XML does not allow are replaced.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(printable(c)),
        }
    }
    out
}

/// The same, and no line ends within a word that has a minus in it: names are never broken.
fn unbroken(text: &str) -> String {
    let word = |word: &str| match word.contains('-') {
        true => format!("<span class=\"w\">{}</span>", escaped(word)),
        false => escaped(word),
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// What stands for a character that XML does not allow, or that is no character.
pub fn printable(c: char) -> char {
    match c {
        '\t' | '\n' | '\r' => ' ',
        c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => '\u{fffd}',
        c => c,
    }
}

/// A name that can be in an `id`: letters, digits and minus.
pub fn id(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// A table that is being written.
pub struct Table {
    html: String,
}

/// One cell: text, and perhaps a second, smaller one below.
pub struct Cell {
    text: String,
    small: Option<String>,
    class: &'static str,
}

impl Cell {
    /// A figure, to the right.
    pub fn figure(text: impl Into<String>) -> Self {
        Self { text: text.into(), small: None, class: "n" }
    }

    /// Words, to the left.
    pub fn words(text: impl Into<String>) -> Self {
        Self { text: text.into(), small: None, class: "" }
    }

    /// With a smaller text below.
    pub fn with_small(self, small: Option<String>) -> Self {
        Self { small, ..self }
    }

    /// In the colors of something that was reached, or was not.
    pub fn judged(self, is_good: bool) -> Self {
        Self { class: if is_good { "n good" } else { "n bad" }, ..self }
    }

    /// The median of a figure with the range of its runs below.
    pub fn spread(spread: Option<Spread>, show: impl Fn(f64) -> String) -> Self {
        let Some(spread) = spread else { return Self::figure(DASH) };
        let range = spread.range().map(|(least, most)| format!("{} {DASH} {}", show(least), show(most)));
        Self::figure(show(spread.median)).with_small(range)
    }

    /// Something that follows from two figures, with what is said of them below.
    pub fn verdict(text: String, verdict: Option<Verdict>) -> Self {
        let cell = Self::figure(text).with_small(verdict.map(|verdict| verdict.word().to_owned()));
        match verdict {
            Some(Verdict::Better) => cell.judged(true),
            Some(Verdict::Worse) => cell.judged(false),
            Some(Verdict::Unclear) => Self { class: "n unclear", ..cell },
            Some(Verdict::Same) | None => cell,
        }
    }

    /// The ratio of two figures, `base` the second, with what is said of them.
    pub fn ratio(key: &str, ours: Option<Spread>, base: Option<Spread>) -> Self {
        let Some((ours, base)) = ours.zip(base) else { return Self::figure(DASH) };
        let Some(ratio) = ratio(ours.median, base.median) else { return Self::figure(DASH) };
        Self::verdict(three_digits(ratio), Verdict::of(key, &ours, &base))
    }

    /// In one line.
    pub fn line(&self) -> String {
        match &self.small {
            Some(small) => format!("{} ({small})", self.text),
            None => self.text.clone(),
        }
    }
}

impl Table {
    /// A table of columns; those from the number `figures` on have figures.
    pub fn new(caption: &str, columns: &[String], figures: usize) -> Self {
        let mut html = format!(
            "<div class=\"scroll\" tabindex=\"0\"><table><caption><span>{}</span></caption><thead><tr>",
            escaped(caption)
        );
        for (number, column) in columns.iter().enumerate() {
            let class = if number >= figures { " class=\"n\"" } else { "" };
            let _ = write!(html, "<th scope=\"col\"{class}>{}</th>", unbroken(column));
        }
        html.push_str("</tr></thead><tbody>");
        Self { html }
    }

    /// A group of rows begins.
    pub fn group(&mut self) {
        self.html.push_str("</tbody><tbody>");
    }

    /// A row, whose first cell is its heading.
    pub fn row(&mut self, heading: &str, cells: &[Cell]) {
        self.row_of(&unbroken(heading), cells);
    }

    /// The same, and the heading leads to another place of the page.
    pub fn row_to(&mut self, anchor: &str, heading: &str, cells: &[Cell]) {
        self.row_of(&format!("<a href=\"#{anchor}\">{}</a>", unbroken(heading)), cells);
    }

    fn row_of(&mut self, heading: &str, cells: &[Cell]) {
        let _ = write!(self.html, "<tr><th scope=\"row\">{heading}</th>");
        for Cell { text, small, class } in cells {
            let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
            let _ = write!(self.html, "<td{class}>{}", unbroken(text));
            if let Some(small) = small {
                let _ = write!(self.html, "<small>{}</small>", escaped(small));
            }
            self.html.push_str("</td>");
        }
        self.html.push_str("</tr>\n");
    }

    /// The whole table.
    pub fn done(mut self) -> String {
        self.html.push_str("</tbody></table></div>\n");
        self.html = self.html.replace("<tbody></tbody>", "");
        self.html
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_is_taken_for_markup() {
        assert_eq!(
            escaped("<b a='1' c=\"2\">&\u{1}\n"),
            "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;\u{fffd} "
        );
        assert_eq!(id("a b/<c>"), "a-b--c-");
        assert_eq!(unbroken("a <b-c> d"), "a <span class=\"w\">&lt;b-c&gt;</span> d");
    }
}
