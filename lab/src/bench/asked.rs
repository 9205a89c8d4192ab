//! What figures are asked to be, and whether they are: lines below a table, and a list in the JSON object.

use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;

/// A figure and its bound.
#[derive(Debug, Serialize)]
pub struct Asked {
    /// What the figure is.
    pub what: &'static str,
    /// Of which engine.
    pub engine: String,
    pub figure: f64,
    pub bound: f64,
    pub side: Side,
    pub is_met: bool,
}

/// On which side of the bound figures should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    AtMost,
    AtLeast,
}

impl Asked {
    pub fn new(what: &'static str, engine: &str, figure: f64, side: Side, bound: f64) -> Self {
        let is_met = match side {
            Side::AtMost => figure <= bound,
            Side::AtLeast => figure >= bound,
        };
        Self { what, engine: engine.to_owned(), figure, bound, side, is_met }
    }
}

/// Of a median, if the engine has it.
pub fn median(json: &Value, engine: &str, key: &str) -> Option<f64> {
    json["medians"][engine][key].as_f64()
}

/// The names of our engines.
pub fn ours(json: &Value) -> Vec<String> {
    let engines = json["engines"].as_array().into_iter().flatten().filter_map(Value::as_str);
    engines.filter(|engine| engine.starts_with("elbowroom")).map(str::to_owned).collect()
}

/// Adds them to the table and to the object.
pub fn note(asked: &[Asked], table: &mut String, json: &mut Value) {
    if !asked.is_empty() {
        table.push('\n');
    }
    for Asked { what, engine, figure, bound, side, is_met } in asked {
        let side = if *side == Side::AtMost { "at most" } else { "at least" };
        let met = if *is_met { "met" } else { "NOT met" };
        let _ = writeln!(table, "{what}, {engine}: {figure:.2}, asked for is {side} {bound:.2}: {met}");
    }
    json["asked"] = serde_json::to_value(asked).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_at_its_bound_meets_it_and_the_side_decides_else() {
        let met = |figure, side| Asked::new("x", "elbowroom", figure, side, 1.5).is_met;
        assert!(met(1.5, Side::AtMost) && met(1.5, Side::AtLeast));
        assert!(met(1.4, Side::AtMost) && !met(1.6, Side::AtMost));
        assert!(!met(1.4, Side::AtLeast) && met(1.6, Side::AtLeast));
        let (mut table, mut json) = (String::new(), serde_json::json!({}));
        note(&[Asked::new("x", "elbowroom", 1.4, Side::AtLeast, 1.5)], &mut table, &mut json);
        assert!(table.contains("NOT met") && json["asked"][0]["is_met"] == false, "{table} {json}");
    }
}
