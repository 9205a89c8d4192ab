//! Models of experts: where their weights are in a file, and which experts each token uses.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::PAGE_BYTES;
use crate::chunks::{Layout, Zipf, shuffled};
use crate::content::{PageDice, share};

/// A model: in each layer dense weights, which each token reads, and behind them experts, of which it reads
/// some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args, serde::Serialize)]
pub struct Model {
    /// How many layers the model has
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub layers: u64,
    /// How many experts a layer has
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub experts: u64,
    /// How many of them a token uses in each layer
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub used: u64,
}

/// How large the parts of a model are, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weights {
    /// An expert.
    pub expert_bytes: u64,
    /// The dense weights of a layer.
    pub dense_bytes: u64,
}

impl Model {
    /// Where the weights are, of which each part is a chunk.
    pub fn layout(&self, weights: Weights, align: u64, seed: u64) -> Layout {
        let of_layer = || {
            let experts = (0..self.experts).map(|_| weights.expert_bytes);
            [weights.dense_bytes].into_iter().chain(experts)
        };
        Layout::of_sizes((0..self.layers).flat_map(|_| of_layer()), align, seed)
    }

    /// The chunk of the dense weights of a layer.
    pub fn dense(&self, layer: u64) -> u64 {
        layer * (self.experts + 1)
    }

    /// The chunk of an expert.
    pub fn expert(&self, layer: u64, expert: u16) -> u64 {
        self.dense(layer) + 1 + u64::from(expert)
    }

    /// How many pages a token reads.
    pub fn pages_per_token(&self, weights: Weights) -> u64 {
        self.layers * (weights.dense_bytes / PAGE_BYTES + self.used * (weights.expert_bytes / PAGE_BYTES))
    }
}

/// How a routing is made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recipe {
    /// How many tokens there are.
    pub tokens: u64,
    /// How uneven it is which experts of a layer are used: the exponent of a zipf distribution. Each layer
    /// has an order of its own.
    pub skew: f64,
    /// How probable it is that an expert that the token before used is used again, from 0 to 1.
    pub locality: f64,
    /// All that is drawn follows from it.
    pub seed: u64,
}

/// Which experts each token uses in each layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routing {
    model: Model,
    /// Of token after token, and in each of layer after layer.
    experts: Vec<u16>,
}

impl Routing {
    /// Draws one.
    pub fn generate(model: Model, recipe: Recipe) -> Self {
        let mut dice = PageDice::new(recipe.seed ^ 0x0e0e);
        let zipf = Zipf::new(model.experts, recipe.skew);
        let orders: Vec<Vec<u32>> = (0..model.layers).map(|_| shuffled(model.experts, &mut dice)).collect();
        let mut last: Vec<Vec<u16>> = vec![Vec::new(); model.layers as usize];
        let mut experts = Vec::new();
        for _ in 0..recipe.tokens {
            for (order, last) in orders.iter().zip(&mut last) {
                last.retain(|_| share(&mut dice) < recipe.locality);
                while (last.len() as u64) < model.used {
                    let expert = order[zipf.draw(&mut dice) as usize] as u16;
                    if !last.contains(&expert) {
                        last.push(expert);
                    }
                }
                experts.extend_from_slice(last);
            }
        }
        Self { model, experts }
    }

    /// Reads one that has a line for each token and layer, with the numbers of the experts.
    ///
    /// # Errors
    /// If the file cannot be read, or does not belong to the model; the message names the line.
    pub fn read(path: &Path, model: Model) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text, model).with_context(|| format!("{} is no routing of this model", path.display()))
    }

    fn parse(text: &str, model: Model) -> Result<Self> {
        let mut experts = Vec::new();
        let is_data = |line: &str| !line.trim().is_empty() && !line.starts_with('#');
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| is_data(line)) {
            let first = experts.len();
            for word in line.split_ascii_whitespace() {
                let expert = word.parse::<u16>().ok().filter(|expert| u64::from(*expert) < model.experts);
                let most = model.experts - 1;
                let expert = expert.with_context(|| {
                    format!("line {number}: \"{word}\" is no expert; they have numbers from 0 to {most}")
                })?;
                ensure!(!experts[first..].contains(&expert), "line {number} names expert {expert} twice");
                experts.push(expert);
            }
            let used = (experts.len() - first) as u64;
            ensure!(
                used == model.used,
                "line {number} names {used} experts, not {}: give --used the number that a token uses",
                model.used
            );
        }
        let of_token = (model.layers * model.used) as usize;
        ensure!(
            !experts.is_empty() && experts.len().is_multiple_of(of_token),
            "it needs a line for each of the {} layers of each token (--layers)",
            model.layers
        );
        Ok(Self { model, experts })
    }

    /// Writes it as [`Routing::read`] takes it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let Model { layers, experts, used } = self.model;
        let mut text = format!(
            "# elbowroom lab run moe --layers {layers} --experts {experts} --used {used} --routing THIS\n\
             # A line for each token and layer: the numbers of the experts.\n"
        );
        for line in self.experts.chunks(used as usize) {
            let words: Vec<String> = line.iter().map(u16::to_string).collect();
            let _ = writeln!(text, "{}", words.join(" "));
        }
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// How many tokens there are.
    pub fn tokens(&self) -> u64 {
        self.experts.len() as u64 / (self.model.layers * self.model.used)
    }

    /// The experts that a token uses in a layer. Behind the last token comes the first one again.
    pub fn experts(&self, token: u64, layer: u64) -> &[u16] {
        let used = self.model.used as usize;
        let line = ((token % self.tokens()) * self.model.layers + layer) as usize;
        &self.experts[line * used..(line + 1) * used]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Model = Model { layers: 3, experts: 16, used: 4 };
    const RECIPE: Recipe = Recipe { tokens: 200, skew: 0.8, locality: 0.4, seed: 5 };

    #[test]
    fn what_was_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("routing");
        let routing = Routing::generate(MODEL, RECIPE);
        routing.write(&path).unwrap();
        assert_eq!(Routing::read(&path, MODEL).unwrap(), routing);
        assert_eq!((routing.tokens(), routing.experts(200, 1)), (200, routing.experts(0, 1)));
        assert_ne!(Routing::generate(MODEL, Recipe { seed: 6, ..RECIPE }), routing);
    }

    #[test]
    fn a_token_uses_each_expert_once_and_often_those_of_the_one_before() {
        let again = |locality| {
            let routing = Routing::generate(MODEL, Recipe { locality, skew: 0.0, ..RECIPE });
            let mut again = 0;
            for token in 1..routing.tokens() {
                for layer in 0..MODEL.layers {
                    let experts = routing.experts(token, layer);
                    assert!((1..4).all(|nth| !experts[..nth].contains(&experts[nth])), "{experts:?}");
                    let before = routing.experts(token - 1, layer);
                    again += experts.iter().filter(|expert| before.contains(expert)).count();
                }
            }
            again as f64 / (199 * 3 * 4) as f64
        };
        // A fourth of what is drawn anew was there before, too.
        assert!((0.2..0.3).contains(&again(0.0)), "{}", again(0.0));
        assert!((0.8..0.9).contains(&again(0.8)), "{}", again(0.8));
    }

    #[test]
    fn layers_prefer_experts_of_their_own() {
        let routing = Routing::generate(MODEL, Recipe { locality: 0.0, skew: 1.5, ..RECIPE });
        let hottest = |layer| {
            let mut counts = [0; 16];
            (0..200).flat_map(|token| routing.experts(token, layer)).for_each(|e| counts[*e as usize] += 1);
            (0..16).max_by_key(|expert| counts[*expert]).unwrap()
        };
        assert!((1..3).any(|layer| hottest(layer) != hottest(0)));
    }

    #[test]
    fn what_is_no_routing_is_refused_with_the_line() {
        let parse = |text: &str| Routing::parse(text, Model { layers: 2, experts: 4, used: 2 });
        assert_eq!(parse("# comment\n0 1\n\n2 3\n").unwrap().tokens(), 1);
        for (wrong, said) in [
            ("", "each of the 2 layers"),
            ("0 1\n", "each of the 2 layers"),
            ("0 1\n2\n", "line 2 names 1 experts"),
            ("0 1\n2 4\n", "line 2: \"4\""),
            ("0 1\n2 x\n", "line 2: \"x\""),
            ("0 0\n2 3\n", "line 1 names expert 0 twice"),
        ] {
            let error = format!("{:#}", parse(wrong).unwrap_err());
            assert!(error.contains(said), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn each_part_of_a_model_is_a_chunk_of_its_own() {
        let weights = Weights { expert_bytes: 12 << 10, dense_bytes: 8 << 10 };
        let layout = MODEL.layout(weights, 4096, 1);
        assert_eq!(layout.count(), 3 * 17);
        assert_eq!(layout.len(MODEL.dense(2)), 8 << 10);
        assert_eq!(layout.len(MODEL.expert(2, 15)), 12 << 10);
        assert_eq!(MODEL.expert(2, 15), layout.count() - 1);
        assert_eq!(MODEL.pages_per_token(weights), 3 * (2 + 4 * 3));
    }
}
