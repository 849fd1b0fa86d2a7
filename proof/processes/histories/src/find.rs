//! Handles *reads by a property*: each of them reads all registers that have a property. If such a read did
//! not return a register, this code finds out which version of the register the reader saw.
//!
//! The reader saw some version without the property. If the order of all versions is known, the existing
//! edges rule some versions out: those that were replaced before the reader, and those that were written
//! after it. Of the remaining versions, only those without the property count. The reader comes after the
//! writer of the first of them, and before the writer that replaced the last of them. These are new edges,
//! which may rule out versions for other readers.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Graph, Order};
use crate::history::{Property, Register, Written};
use crate::uses::Use;
use crate::why::{Place, Why};

/// The versions of a register in order, each with its writer. The empty version at the beginning is left out.
pub type Versions = Vec<(Written, usize)>;

/// A register that a read by a property did not return. So it is unknown which version the reader saw.
pub struct Unknown {
    reader: usize,
    register: Register,
    property: Property,
}

/// What the checker knows about registers, and what it does not know yet.
pub struct Found {
    /// For each register, its versions, if their order is known.
    pub versions: BTreeMap<Register, Versions>,
    pub unknown: Vec<Unknown>,
}

/// Records the registers that a read by a property returned. Returns the registers in its range whose version
/// is still unknown.
pub fn note(
    reader: usize,
    property: &Property,
    found: &[(Register, Written)],
    registers: &BTreeSet<Register>,
    uses: &mut BTreeMap<Register, Use>,
) -> Result<Vec<Unknown>, String> {
    let mut seen = BTreeSet::new();
    for (register, value) in found {
        let is_inside = (property.from..property.to).contains(register);
        if !is_inside || !property.has(*value) || !seen.insert(*register) {
            return Err(format!(
                "transaction {reader} found {value} of register {register} twice, or wrongly"
            ));
        }
        uses.entry(*register).or_default().look(reader, *register, Some(*value))?;
    }
    let mut unknown = Vec::new();
    for register in registers.range(property.from..property.to).filter(|register| !seen.contains(register)) {
        match uses.get(register).and_then(Use::known) {
            Some(Some(value)) if property.has(value) => {
                return Err(format!("transaction {reader} did not find {value} of register {register}"));
            }
            Some(_) => {}
            None => unknown.push(Unknown { reader, register: *register, property: *property }),
        }
    }
    Ok(unknown)
}

/// Removes each entry whose version is known from another read of the same transaction. Returns the other
/// entries.
pub fn still_unknown(unknown: Vec<Unknown>, uses: &BTreeMap<Register, Use>) -> Result<Vec<Unknown>, String> {
    let mut left = Vec::new();
    for one in unknown {
        let Unknown { reader, register, property } = &one;
        match uses.get(register).and_then(|used| used.read) {
            Some(Some(value)) if property.has(value) => {
                return Err(format!("transaction {reader} did not find {value} of register {register}"));
            }
            Some(_) => {}
            None => left.push(one),
        }
    }
    Ok(left)
}

/// Adds the edges that follow from the existing ones. The existing edges must not form a cycle. Returns
/// whether this function added any edge.
pub fn narrow(found: &Found, graph: &mut Graph) -> Result<bool, String> {
    let order = graph.order();
    let mut is_new = false;
    let mut of_reader: Option<(usize, Around)> = None;
    for Unknown { reader, register, property } in &found.unknown {
        let Some(versions) = found.versions.get(register) else { continue };
        let around = match &of_reader {
            Some((of, around)) if of == reader => around,
            _ => &of_reader.insert((*reader, Around::of(*reader, &order))).1,
        };
        let (first, last) = around.narrowed(versions, property).ok_or_else(|| {
            format!(
                "transaction {reader} did not find register {register}, which at any moment at which it can have looked had \
                 a value with remainder {} of {}",
                property.remainder, property.divisor
            )
        })?;
        let place = Place::Register(*register);
        if let Some((_, by)) = first.checked_sub(1).map(|nth| versions[nth]) {
            is_new |= !around.before[by] && graph.add(by, *reader, Why::Wr(place));
        }
        if let Some((_, by)) = versions.get(last) {
            is_new |= !around.after[*by] && graph.add(*reader, *by, Why::Rw(place));
        }
    }
    Ok(is_new)
}

/// The transactions that come before a reader, and those that come after it.
struct Around {
    before: Vec<bool>,
    after: Vec<bool>,
}

impl Around {
    fn of(reader: usize, order: &Order) -> Self {
        let mut around = Self { before: order.before(reader), after: order.after(reader) };
        // The reader's own writes count as later than its read, because the read has not seen them.
        around.after[reader] = true;
        around
    }

    /// Returns the numbers of the first and the last version that the reader can have seen. The empty version
    /// has the number 0. Returns `None` if the reader can have seen no version.
    fn narrowed(&self, versions: &Versions, property: &Property) -> Option<(usize, usize)> {
        let first = versions.iter().rposition(|(_, by)| self.before[*by]).map_or(0, |nth| nth + 1);
        let end = versions.iter().position(|(_, by)| self.after[*by]).unwrap_or(versions.len());
        let is_without = |nth: &usize| nth.checked_sub(1).is_none_or(|at| !property.has(versions[at].0));
        let mut left = (first..=end).filter(is_without);
        let first = left.next()?;
        Some((first, left.next_back().unwrap_or(first)))
    }
}
