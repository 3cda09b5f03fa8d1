// SPDX-License-Identifier: Apache-2.0
//! Reads types and enumerators out of a library's debugging information.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use gimli::{AttributeValue, DebuggingInformationEntry, LittleEndian, UnitOffset};
use object::{Object as _, ObjectSection as _};

use crate::layout::Place;

type Reader<'a> = gimli::EndianSlice<'a, LittleEndian>;
type Dwarf<'a> = gimli::Dwarf<Reader<'a>>;
type Unit<'a> = gimli::Unit<Reader<'a>>;
type Entry<'a> = DebuggingInformationEntry<Reader<'a>>;

/// Debugging information of one type.
#[derive(Debug, Default)]
pub(crate) struct CType {
    pub(crate) size: usize,
    /// Fields and union arms, by path.
    pub(crate) fields: BTreeMap<String, Place>,
    /// Members that are function pointers: the parameters' kinds, see [`kind`].
    pub(crate) functions: BTreeMap<String, String>,
}

/// The requested types and enumerators that the debugging information has.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) types: BTreeMap<String, CType>,
    pub(crate) enumerators: BTreeMap<String, i64>,
}

/// Looks up types and enumerators by name, the first definition of each.
pub(crate) fn find(library: &Path, types: &[&str], enumerators: &[&str]) -> Found {
    let file = File::open(library).expect("the library opens");
    // SAFETY: the mapping is private and read only, and no program changes a downloaded library.
    let map = unsafe { memmap2::Mmap::map(&file) }.expect("the library maps");
    let object = object::File::parse(&*map).expect("the library is an object file");
    let section = |id: gimli::SectionId| -> Result<Reader<'_>, object::Error> {
        let data = object.section_by_name(id.name()).map_or(Ok(&[][..]), |s| s.data())?;
        Ok(Reader::new(data, LittleEndian))
    };
    let dwarf = gimli::Dwarf::load(section).expect("its sections are readable");
    let mut found = Found::default();
    let mut headers = dwarf.units();
    while let Some(header) = headers.next().expect("units are readable") {
        let unit = dwarf.unit(header).expect("a unit is readable");
        scan(&dwarf, &unit, types, enumerators, &mut found);
        if found.types.len() == types.len() && found.enumerators.len() == enumerators.len() {
            break;
        }
    }
    found
}

/// Searches the top level of one compilation unit.
fn scan(
    dwarf: &Dwarf<'_>,
    unit: &Unit<'_>,
    types: &[&str],
    enumerators: &[&str],
    found: &mut Found,
) {
    let mut cursor = unit.entries();
    cursor.next_dfs().expect("a unit has a root");
    cursor.next_dfs().expect("a unit has entries");
    while let Some(entry) = cursor.current() {
        match entry.tag() {
            gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type | gimli::DW_TAG_typedef => {
                if let Some(name) = name(dwarf, unit, entry)
                    && types.contains(&&*name)
                    && !found.types.contains_key(&name)
                    && let Some(ty) = read_type(dwarf, unit, entry.offset())
                {
                    found.types.insert(name, ty);
                }
            }
            gimli::DW_TAG_enumeration_type => {
                for (name, value) in read_enum(dwarf, unit, entry.offset()) {
                    if enumerators.contains(&&*name) {
                        found.enumerators.insert(name, value);
                    }
                }
            }
            _ => {}
        }
        cursor.next_sibling().expect("entries are readable");
    }
}

/// The name of an entry.
fn name(dwarf: &Dwarf<'_>, unit: &Unit<'_>, entry: &Entry<'_>) -> Option<String> {
    let value = entry.attr_value(gimli::DW_AT_name)?;
    let text = dwarf.attr_string(unit, value).expect("a name is readable");
    Some(text.to_string().expect("a name is UTF-8").to_owned())
}

/// Value of an entry's numeric attribute.
fn number(entry: &Entry<'_>, attribute: gimli::DwAt) -> Option<i64> {
    let attribute = entry.attr(attribute)?;
    attribute.udata_value().and_then(|n| n.try_into().ok()).or_else(|| attribute.sdata_value())
}

/// Value of an attribute that is a number of bytes.
fn bytes(entry: &Entry<'_>, attribute: gimli::DwAt) -> Option<usize> {
    number(entry, attribute).map(|n| n.try_into().expect("sizes and offsets are not negative"))
}

/// The type that `entry` refers to, past typedefs and qualifiers.
fn resolve<'a>(unit: &Unit<'a>, offset: UnitOffset) -> Entry<'a> {
    let entry = unit.entry(offset).expect("a type is readable");
    match (entry.tag(), entry.attr_value(gimli::DW_AT_type)) {
        (
            gimli::DW_TAG_typedef | gimli::DW_TAG_const_type | gimli::DW_TAG_volatile_type,
            Some(AttributeValue::UnitRef(target)),
        ) => resolve(unit, target),
        _ => entry,
    }
}

/// The struct or union at `offset`; `None` for other types and for a mere declaration.
fn read_type(dwarf: &Dwarf<'_>, unit: &Unit<'_>, offset: UnitOffset) -> Option<CType> {
    let entry = resolve(unit, offset);
    if !matches!(entry.tag(), gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type) {
        return None;
    }
    let size = bytes(&entry, gimli::DW_AT_byte_size)?;
    let mut ty = CType { size, ..CType::default() };
    read_members(dwarf, unit, entry.offset(), "", 0, &mut ty);
    Some(ty)
}

/// Adds the members of the type at `offset`, and their members, by path below `prefix`.
fn read_members(
    dwarf: &Dwarf<'_>,
    unit: &Unit<'_>,
    offset: UnitOffset,
    prefix: &str,
    base: usize,
    into: &mut CType,
) {
    let mut tree = unit.entries_tree(Some(offset)).expect("a type is readable");
    let mut members = tree.root().expect("a type is readable").children();
    while let Some(member) = members.next().expect("members are readable") {
        let entry = member.entry();
        if entry.tag() != gimli::DW_TAG_member {
            continue;
        }
        let Some(AttributeValue::UnitRef(target)) = entry.attr_value(gimli::DW_AT_type) else {
            panic!("a member below {prefix:?} has no type in its unit");
        };
        let ty = resolve(unit, target);
        let offset = base + bytes(entry, gimli::DW_AT_data_member_location).unwrap_or(0);
        let size = bytes(&ty, gimli::DW_AT_byte_size).expect("a member's type has a size");
        let mut below = prefix.to_owned();
        if let Some(name) = name(dwarf, unit, entry) {
            below.push_str(&name);
            into.fields.insert(below.clone(), Place { offset, size });
            if let Some(kinds) = parameters(unit, &ty) {
                into.functions.insert(below.clone(), kinds);
            }
            below.push('.');
        }
        if matches!(ty.tag(), gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type) {
            read_members(dwarf, unit, ty.offset(), &below, offset, into);
        }
    }
}

/// The kinds of a function's parameters, if `ty` is a pointer to a function.
fn parameters(unit: &Unit<'_>, ty: &Entry<'_>) -> Option<String> {
    let Some(AttributeValue::UnitRef(target)) = ty.attr_value(gimli::DW_AT_type) else {
        return None;
    };
    let function = resolve(unit, target);
    if function.tag() != gimli::DW_TAG_subroutine_type {
        return None;
    }
    let mut tree = unit.entries_tree(Some(function.offset())).expect("a function is readable");
    let mut children = tree.root().expect("a function is readable").children();
    let mut kinds = String::new();
    while let Some(child) = children.next().expect("parameters are readable") {
        if let Some(AttributeValue::UnitRef(target)) = child.entry().attr_value(gimli::DW_AT_type) {
            kinds.push(kind(&resolve(unit, target)));
        }
    }
    Some(kinds)
}

/// How a value of the type is passed: `p` a pointer, `l` another eight bytes, `i` four bytes.
fn kind(ty: &Entry<'_>) -> char {
    match (ty.tag(), bytes(ty, gimli::DW_AT_byte_size)) {
        (gimli::DW_TAG_pointer_type, _) => 'p',
        (_, Some(8)) => 'l',
        (_, Some(4)) => 'i',
        other => panic!("a parameter of an unexpected type: {other:?}"),
    }
}

/// The enumerators of the enum at `offset`.
fn read_enum(dwarf: &Dwarf<'_>, unit: &Unit<'_>, offset: UnitOffset) -> Vec<(String, i64)> {
    let mut tree = unit.entries_tree(Some(offset)).expect("an enum is readable");
    let mut children = tree.root().expect("an enum is readable").children();
    let mut enumerators = Vec::new();
    while let Some(child) = children.next().expect("enumerators are readable") {
        let entry = child.entry();
        if let (Some(name), Some(value)) =
            (name(dwarf, unit, entry), number(entry, gimli::DW_AT_const_value))
        {
            enumerators.push((name, value));
        }
    }
    enumerators
}
