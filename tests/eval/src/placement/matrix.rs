//! Reads the text of `nvidia-smi topo -m`, and of `nvidia-smi topo -p2p` after it.
//!
//! The text is no interface. Cells run together, headers have colours, and columns are blank. If
//! two GPUs have NVLinks, the text names the NVLinks in place of the common ancestor on PCI
//! Express. The reader then concludes the ancestor from the NICs and the NUMA nodes of both GPUs.

use std::collections::BTreeMap;
use std::fmt;

use deepres_abi::MAX_GPUS;
use deepres_policy::placement::{Gpu, Level, NvLink, P2p, Remote, Topology, Wire};

/// The most NVLinks that a GPU has (`NVML_NVLINK_MAX_LINKS`). More links in a row of the text must
/// lead through an NVSwitch, which gives each pair all links.
const MOST_LINKS: usize = 18;
/// The most NVLinks of a GPU by generation, from the third on.
const LINKS_OF_GENERATION: [(usize, u8); 2] = [(12, 4), (6, 3)];
/// The generation of GPUs with fewer links.
const FIRST_GENERATION: u8 = 2;

/// A machine, as a matrix describes it.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// Name of the matrix.
    pub name: String,
    /// The machine.
    pub topology: Topology,
}

/// The reason for which a text is no usable matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// The text has no header with GPUs.
    NoMatrix,
    /// The machine has one GPU, so there is nothing to compare.
    OneGpu,
    /// The machine has more GPUs than deepres manages.
    TooMany(usize),
    /// The cells between these GPUs are in no row, so symmetry does not give them.
    Missing(String, String),
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMatrix => f.write_str("the text has no matrix of `nvidia-smi topo -m`"),
            Self::OneGpu => f.write_str("the machine has one GPU"),
            Self::TooMany(gpus) => {
                write!(f, "the machine has {gpus} GPUs, and deepres manages {MAX_GPUS}")
            }
            Self::Missing(a, b) => {
                write!(f, "rows are missing: no row has the cell of {a} and {b}")
            }
        }
    }
}

impl std::error::Error for Flaw {}

/// A cell of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Itself,
    Level(Level),
    NvLinks(u8),
    P2p(P2p),
}

/// The words of cells. A word that begins with another word comes before it.
const WORDS: [(&str, Cell); 15] = [
    ("SYS", Cell::Level(Level::System)),
    ("SOC", Cell::Level(Level::System)),
    ("NODE", Cell::Level(Level::Node)),
    ("PHB", Cell::Level(Level::Phb)),
    ("PXB", Cell::Level(Level::Pxb)),
    ("PIX", Cell::Level(Level::Pix)),
    ("PSB", Cell::Level(Level::Board)),
    ("OK", Cell::P2p(P2p::Ok)),
    ("CNS", Cell::P2p(P2p::Chipset)),
    ("GNS", Cell::P2p(P2p::Gpu)),
    ("TNS", Cell::P2p(P2p::Topology)),
    ("NS", Cell::P2p(P2p::NotSupported)),
    ("DR", Cell::P2p(P2p::Disabled)),
    ("U", Cell::P2p(P2p::Unknown)),
    ("X", Cell::Itself),
];

/// Returns the cells of a word. Several cells may run together.
fn cells(word: &str) -> Option<Vec<Cell>> {
    let mut cells = Vec::new();
    let mut rest = word;
    while !rest.is_empty() {
        let nvlinks = rest.strip_prefix("NV").map(|after| {
            let digits = after.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(after.len());
            after.split_at(digits)
        });
        let known = WORDS.iter().find_map(|(word, cell)| Some((*cell, rest.strip_prefix(word)?)));
        let (cell, after) = match nvlinks {
            Some((digits, after)) => (Cell::NvLinks(digits.parse().ok()?), after),
            None => known?,
        };
        cells.push(cell);
        rest = after;
    }
    Some(cells)
}

/// Returns a line without the codes that colour and underline text.
fn without_codes(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let after = part.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == ';');
        clean.push_str(after.strip_prefix('m').unwrap_or(after));
    }
    clean
}

fn is_gpu(name: &str) -> bool {
    name.strip_prefix("GPU").is_some_and(|number| number.parse::<u32>().is_ok())
}

/// The header of a matrix.
#[derive(Debug, Clone)]
struct Header {
    columns: Vec<String>,
    has_cpus: bool,
    has_numa_node: bool,
    has_gpu_numa_id: bool,
}

impl Header {
    /// Returns the header that a line is.
    fn of(words: &[&str]) -> Option<Self> {
        let is_header = words.first().is_some_and(|first| is_gpu(first))
            && words.get(1).is_none_or(|second| cells(second).is_none());
        if !is_header {
            return None;
        }
        let is_affinity = |word: &&str| matches!(*word, "CPU" | "NUMA" | "GPU");
        let devices = words.iter().position(is_affinity).unwrap_or(words.len());
        let affinities = words[devices..].join(" ");
        let has_gpu_numa_id = affinities.contains("GPU NUMA");
        Some(Self {
            columns: words[..devices].iter().map(|word| (*word).to_owned()).collect(),
            has_cpus: affinities.contains("CPU"),
            has_numa_node: affinities.replace("GPU NUMA", "").contains("NUMA"),
            has_gpu_numa_id,
        })
    }
}

/// The affinity of a GPU, as its row says it.
#[derive(Debug, Clone, Default)]
struct Affinity {
    cpus: Option<String>,
    numa_node: Option<u32>,
}

impl Affinity {
    /// Reads the words after the cells of a row.
    fn of(header: &Header, mut words: &[&str]) -> Self {
        if let (true, [before @ .., "N/A"]) = (header.has_gpu_numa_id, words) {
            words = before;
        }
        let (cpus, node) = match (header.has_cpus, header.has_numa_node, words) {
            (true, true, [cpus, node, ..]) => (Some(*cpus), Some(*node)),
            (true, true, [one]) if !one.contains([',', '-']) => (None, Some(*one)),
            (true, _, [cpus, ..]) => (Some(*cpus), None),
            (false, true, [node, ..]) => (None, Some(*node)),
            _ => (None, None),
        };
        Self { cpus: cpus.map(str::to_owned), numa_node: node.and_then(|node| node.parse().ok()) }
    }
}

/// The content of a text.
#[derive(Debug, Default)]
struct Text {
    gpus: Vec<String>,
    /// The cells of `topo -m`, by the names of row and column.
    cells: BTreeMap<(String, String), Cell>,
    /// The cells of `topo -p2p`. If the text has several of these matrices, a refusal counts.
    p2p: BTreeMap<(String, String), P2p>,
    affinities: BTreeMap<String, Affinity>,
    has_numa_nodes: bool,
}

impl Text {
    fn read(text: &str) -> Self {
        let mut read = Self::default();
        let mut header = None;
        let mut remark = String::new();
        for line in text.lines() {
            let line = without_codes(line);
            let words: Vec<&str> = line.split_whitespace().collect();
            if let Some(found) = Header::of(&words) {
                if read.gpus.is_empty() {
                    read.gpus = found.columns.iter().filter(|name| is_gpu(name)).cloned().collect();
                    read.has_numa_nodes = found.has_numa_node;
                }
                header = Some(found);
                continue;
            }
            let row = header.as_ref().and_then(|header| Some((header, words.split_first()?)));
            match row {
                Some((header, (name, rest)))
                    if is_gpu(name) || header.columns.contains(&(*name).to_owned()) =>
                {
                    // These matrices tell NVLinks and atomic operations, not copies.
                    let is_other = ["-p2p n", "-p2p a"].iter().any(|other| remark.contains(other));
                    read.row(header, name, rest, is_other);
                }
                _ if words.is_empty() => {}
                _ => remark = line.clone(),
            }
        }
        read
    }

    fn row(&mut self, header: &Header, name: &str, words: &[&str], is_other: bool) {
        let mut found = Vec::new();
        let mut rest = words;
        while let [word, after @ ..] = rest
            && found.len() < header.columns.len()
            && let Some(cells) = cells(word)
        {
            found.extend(cells);
            rest = after;
        }
        for (column, cell) in header.columns.iter().zip(&found) {
            let place = (name.to_owned(), column.clone());
            match cell {
                Cell::P2p(_) if is_other => {}
                Cell::P2p(status) => {
                    let known = self.p2p.entry(place).or_insert(*status);
                    if *known == P2p::Ok {
                        *known = *status;
                    }
                }
                cell => {
                    self.cells.insert(place, *cell);
                }
            }
        }
        if found.iter().any(|cell| matches!(cell, Cell::Level(_) | Cell::NvLinks(_))) && is_gpu(name) {
            self.affinities.insert(name.to_owned(), Affinity::of(header, rest));
        }
    }

    /// Returns the cell of a matrix for two devices, from either device's row.
    fn either<T: Copy>(of: &BTreeMap<(String, String), T>, a: &str, b: &str) -> Option<T> {
        let place = |row: &str, column: &str| of.get(&(row.to_owned(), column.to_owned())).copied();
        place(a, b).or_else(|| place(b, a))
    }

    /// Returns a GPU's NUMA node. Without a column of NUMA nodes, GPUs with the same CPUs are on
    /// one node.
    fn numa_node(&self, gpu: &str) -> Option<u32> {
        let own = self.affinities.get(gpu)?;
        if self.has_numa_nodes {
            return own.numa_node;
        }
        let cpus = own.cpus.as_ref()?;
        let same =
            |other: &String| self.affinities.get(other).is_some_and(|it| it.cpus.as_ref() == Some(cpus));
        self.gpus.iter().position(same).map(|first| first as u32)
    }

    /// Returns the common ancestor of two GPUs with NVLinks between them. In a tree, two devices
    /// have levels to a third. If the levels differ, the higher is the level of the two devices.
    fn ancestor(&self, a: &str, b: &str) -> Level {
        let mut at_most = match (self.numa_node(a), self.numa_node(b)) {
            (Some(one), Some(other)) if one == other => Level::Node,
            (Some(_), Some(_)) => return Level::System,
            _ => Level::System,
        };
        let level = |gpu: &str, third: &str| match Self::either(&self.cells, gpu, third) {
            Some(Cell::Level(level)) => Some(level),
            _ => None,
        };
        for third in self.cells.keys().map(|(_, column)| column).filter(|third| *third != a && *third != b) {
            match (level(a, third), level(b, third)) {
                (Some(one), Some(other)) if one != other => return one.max(other),
                (Some(one), Some(_)) => at_most = at_most.min(one),
                _ => {}
            }
        }
        at_most
    }
}

impl Matrix {
    /// Reads a matrix.
    ///
    /// # Errors
    /// [`Flaw`]: the text is no usable matrix.
    pub fn parse(name: &str, text: &str) -> Result<Self, Flaw> {
        let text = Text::read(text);
        let gpus = &text.gpus;
        match gpus.len() {
            0 => return Err(Flaw::NoMatrix),
            1 => return Err(Flaw::OneGpu),
            count if count > MAX_GPUS => return Err(Flaw::TooMany(count)),
            _ => {}
        }
        let mut links = vec![vec![0_usize; gpus.len()]; gpus.len()];
        let mut wires = BTreeMap::new();
        for (a, one) in gpus.iter().enumerate() {
            for (b, other) in gpus.iter().enumerate().skip(a + 1) {
                let level = match Text::either(&text.cells, one, other) {
                    Some(Cell::Level(level)) => level,
                    Some(Cell::NvLinks(count)) => {
                        (links[a][b], links[b][a]) = (count.into(), count.into());
                        text.ancestor(one, other)
                    }
                    _ => return Err(Flaw::Missing(one.clone(), other.clone())),
                };
                wires.insert((a, b), Wire { level, p2p: Text::either(&text.p2p, one, other) });
            }
        }
        let is_switched = links.iter().any(|row| row.iter().sum::<usize>() > MOST_LINKS);
        let of_gpu =
            |row: &Vec<usize>| if is_switched { row.iter().max().copied() } else { Some(row.iter().sum()) };
        let most = links.iter().filter_map(of_gpu).max().unwrap_or(0);
        let generation = LINKS_OF_GENERATION.iter().find(|(links, _)| most > *links);
        let generation = generation.map_or(FIRST_GENERATION, |(_, generation)| *generation);
        let gpu = |(place, row): (usize, &Vec<usize>)| Gpu {
            links: if is_switched {
                vec![NvLink { generation, remote: Remote::Switch }; of_gpu(row).unwrap_or(0)]
            } else {
                let to = row.iter().enumerate();
                to.flat_map(|(peer, count)| vec![NvLink { generation, remote: Remote::Gpu(peer) }; *count])
                    .collect()
            },
            numa_node: text.numa_node(&gpus[place]),
            fabric: None,
        };
        let machine = links.iter().enumerate().map(gpu).collect();
        let topology = Topology::new(machine, |a, b| wires[&(a, b)], &BTreeMap::new());
        Ok(Self { name: name.to_owned(), topology })
    }
}
