// SPDX-License-Identifier: Apache-2.0
//! Reads C structs out of a library's DWARF: sizes, members, bit fields, array lengths.
//!
//! Members of nested structs appear with a dotted path (`ring.prev`), members of anonymous
//! structs and unions as if they stood in the outer struct. Only what NCCL's headers need is
//! understood: no inheritance, no type units, no references between units.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use gimli::{AttributeValue, DwAt, EndianSlice, LittleEndian, UnitOffset};
use object::{Object, ObjectSection};

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;
type Unit<'a> = gimli::Unit<Slice<'a>>;
type Die<'a> = gimli::DebuggingInformationEntry<Slice<'a>>;

/// A struct as the compiler laid it out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Struct {
    /// Size in bytes.
    pub(crate) size: usize,
    /// Members by dotted path.
    pub(crate) members: HashMap<String, Member>,
}

/// Location and extent of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    /// Least significant bit, counted from the start of the struct.
    pub(crate) bit: usize,
    /// Width in bits; 0 when the type has no known size.
    pub(crate) width: usize,
    /// Number of elements of an array, otherwise 1.
    pub(crate) elements: usize,
    /// Size in bytes of what a pointer points to, where that type is complete.
    pub(crate) pointee: Option<usize>,
}

/// Finds the structs `wanted` in the library at `path`; each goes by one of several names.
///
/// Units are walked until all were seen; a name that no unit defines is absent from the result.
///
/// # Errors
///
/// The file cannot be read, is not an ELF file, or its debug information is missing or damaged.
pub(crate) fn structs(path: &Path, wanted: &[&[&str]]) -> Result<HashMap<String, Struct>, String> {
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(|e| at(&e))?;
    // SAFETY: the library is a file in a cache that nothing writes to while tests run.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| at(&e))?;
    let object = object::File::parse(&*map).map_err(|e| at(&e))?;
    if object.section_by_name(".debug_info").is_none() {
        return Err(at(&"no DWARF (a stripped build?), the kernel layouts cannot be read"));
    }
    let dwarf = Dwarf::load(|id| {
        let section = object.section_by_name(id.name());
        let data = section.map_or(Ok(&[][..]), |s| s.data())?;
        Ok::<_, object::Error>(EndianSlice::new(data, LittleEndian))
    })
    .map_err(|e| at(&e))?;
    walk(&dwarf, wanted).map_err(|e| at(&e))
}

/// Walks units until every wanted struct was seen.
fn walk(dwarf: &Dwarf<'_>, wanted: &[&[&str]]) -> gimli::Result<HashMap<String, Struct>> {
    let mut found = HashMap::new();
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        if wanted.iter().all(|names| names.iter().any(|&name| found.contains_key(name))) {
            break;
        }
        let reader = UnitReader { dwarf, unit: dwarf.unit(header)? };
        reader.collect(wanted, &mut found)?;
    }
    Ok(found)
}

/// One compilation unit.
struct UnitReader<'a> {
    dwarf: &'a Dwarf<'a>,
    unit: Unit<'a>,
}

impl<'a> UnitReader<'a> {
    /// Adds the unit's top-level structs that are wanted and not found yet.
    fn collect(
        &self,
        wanted: &[&[&str]],
        found: &mut HashMap<String, Struct>,
    ) -> gimli::Result<()> {
        let mut cursor = self.unit.entries();
        if !cursor.next_entry()? || !cursor.next_entry()? {
            return Ok(());
        }
        while let Some(die) = cursor.current() {
            if die.tag() == gimli::DW_TAG_structure_type
                && !die.has_attr(gimli::DW_AT_declaration)
                && let Some(name) = self.name(die)?
                && wanted.iter().any(|names| names.contains(&name.as_str()))
                && !found.contains_key(&name)
            {
                let mut members = HashMap::new();
                self.flatten(die.offset(), 0, "", &mut members)?;
                found.insert(name, Struct { size: number(die, gimli::DW_AT_byte_size), members });
            }
            if cursor.next_sibling()?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Adds the members of the struct or union at `offset`, which starts at `base` bits.
    fn flatten(
        &self,
        offset: UnitOffset,
        base: usize,
        prefix: &str,
        members: &mut HashMap<String, Member>,
    ) -> gimli::Result<()> {
        let mut tree = self.unit.entries_tree(Some(offset))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            let die = child.entry();
            let Some(ty) = self.type_of(die).filter(|_| die.tag() == gimli::DW_TAG_member) else {
                continue;
            };
            let ty = self.strip(ty)?;
            let bit = base + self.first_bit(die, &ty)?;
            let is_struct =
                matches!(ty.tag(), gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type);
            let mut inner = prefix.to_owned();
            if let Some(name) = self.name(die)? {
                inner.push_str(&name);
                members.insert(inner.clone(), self.member(die, &ty, bit)?);
                inner.push('.');
            }
            if is_struct {
                self.flatten(ty.offset(), bit, &inner, members)?;
            }
        }
        Ok(())
    }

    /// Describes the member `die` of type `ty` whose first bit is known.
    fn member(&self, die: &Die<'a>, ty: &Die<'a>, bit: usize) -> gimli::Result<Member> {
        let bits = number(die, gimli::DW_AT_bit_size);
        let width = if bits != 0 { bits } else { 8 * self.size(ty)? };
        let elements = if ty.tag() == gimli::DW_TAG_array_type { self.elements(ty)? } else { 1 };
        let pointee = match self.type_of(ty) {
            Some(target) if ty.tag() == gimli::DW_TAG_pointer_type => {
                Some(self.size(&self.strip(target)?)?).filter(|&size| size != 0)
            }
            _ => None,
        };
        Ok(Member { bit, width, elements, pointee })
    }

    /// The member's least significant bit, relative to its struct.
    ///
    /// DWARF 4 counts `DW_AT_bit_offset` from the most significant bit of a storage unit,
    /// `DW_AT_data_bit_offset` counts from the start of the struct.
    fn first_bit(&self, die: &Die<'a>, ty: &Die<'a>) -> gimli::Result<usize> {
        if die.has_attr(gimli::DW_AT_data_bit_offset) {
            return Ok(number(die, gimli::DW_AT_data_bit_offset));
        }
        let start = 8 * number(die, gimli::DW_AT_data_member_location);
        if !die.has_attr(gimli::DW_AT_bit_size) {
            return Ok(start);
        }
        let stored = match number(die, gimli::DW_AT_byte_size) {
            0 => self.size(ty)?,
            size => size,
        };
        let above = number(die, gimli::DW_AT_bit_offset) + number(die, gimli::DW_AT_bit_size);
        Ok(start + (8 * stored).saturating_sub(above))
    }

    /// Size of a type in bytes, 0 when it is incomplete.
    fn size(&self, ty: &Die<'a>) -> gimli::Result<usize> {
        match ty.tag() {
            gimli::DW_TAG_pointer_type => Ok(8),
            gimli::DW_TAG_array_type => match self.type_of(ty) {
                Some(element) => Ok(self.elements(ty)? * self.size(&self.strip(element)?)?),
                None => Ok(0),
            },
            _ => Ok(number(ty, gimli::DW_AT_byte_size)),
        }
    }

    /// Number of elements of an array type, all dimensions multiplied.
    fn elements(&self, array: &Die<'a>) -> gimli::Result<usize> {
        let mut tree = self.unit.entries_tree(Some(array.offset()))?;
        let mut children = tree.root()?.children();
        let mut elements = 1;
        while let Some(child) = children.next()? {
            let die = child.entry();
            if die.has_attr(gimli::DW_AT_count) {
                elements *= number(die, gimli::DW_AT_count);
            } else if die.has_attr(gimli::DW_AT_upper_bound) {
                elements *= number(die, gimli::DW_AT_upper_bound) + 1;
            }
        }
        Ok(elements)
    }

    /// Follows typedefs and qualifiers to the type itself.
    fn strip(&self, mut offset: UnitOffset) -> gimli::Result<Die<'a>> {
        loop {
            let die = self.unit.entry(offset)?;
            match (die.tag(), self.type_of(&die)) {
                (
                    gimli::DW_TAG_typedef
                    | gimli::DW_TAG_const_type
                    | gimli::DW_TAG_volatile_type
                    | gimli::DW_TAG_restrict_type,
                    Some(next),
                ) => offset = next,
                _ => return Ok(die),
            }
        }
    }

    fn type_of(&self, die: &Die<'a>) -> Option<UnitOffset> {
        match die.attr_value(gimli::DW_AT_type) {
            Some(AttributeValue::UnitRef(offset)) => Some(offset),
            _ => None,
        }
    }

    fn name(&self, die: &Die<'a>) -> gimli::Result<Option<String>> {
        let Some(value) = die.attr_value(gimli::DW_AT_name) else { return Ok(None) };
        let name = self.dwarf.attr_string(&self.unit, value)?;
        Ok(Some(name.to_string_lossy().into_owned()))
    }
}

/// A constant attribute, 0 when absent.
fn number(die: &Die<'_>, name: DwAt) -> usize {
    let value = die.attr(name).and_then(gimli::Attribute::udata_value).unwrap_or(0);
    usize::try_from(value).unwrap_or(0)
}
