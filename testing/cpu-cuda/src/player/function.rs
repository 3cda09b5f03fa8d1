// SPDX-License-Identifier: Apache-2.0
//! The device functions of batches.
//!
//! `ncclDevFuncTable` holds one pointer per function id. Each points to a host symbol whose name
//! encodes the function, so ids need no table here.

use std::collections::HashMap;

use super::conn::Proto;
use super::memory::Addr;
use super::reduce::{DataType, RedOp};
use crate::elf::Image;

/// A collective with its own schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coll {
    AllGather,
    AllReduce,
    Broadcast,
    Reduce,
    ReduceScatter,
}

/// How ranks are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algo {
    Ring,
    Tree,
}

/// A device function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Function {
    SendRecv,
    /// Grouped broadcasts.
    AllGatherV(Proto),
    /// A collective; data that is only moved counts as `Sum` of `u8`.
    Coll(Coll, RedOp, DataType, Algo, Proto),
    /// Anything else, by name.
    Unsupported(String),
}

impl Function {
    /// Parses the name after `ncclDevFunc_`, such as `AllReduce_Sum_f32_RING_LL`.
    pub(crate) fn parse(name: &str) -> Self {
        Self::known(name).unwrap_or_else(|| Self::Unsupported(name.to_owned()))
    }

    fn known(name: &str) -> Option<Self> {
        let parts: Vec<_> = name.split('_').collect();
        let moved = (RedOp::Sum, DataType::U8);
        let (coll, (op, ty), rest) = match parts[..] {
            ["SendRecv"] => return Some(Self::SendRecv),
            ["AllGatherV", "RING", proto] => return self::proto(proto).map(Self::AllGatherV),
            ["AllGather", ref rest @ ..] => (Coll::AllGather, moved, rest),
            ["Broadcast", ref rest @ ..] => (Coll::Broadcast, moved, rest),
            [coll, op, ty, ref rest @ ..] => {
                let coll = match coll {
                    "AllReduce" => Coll::AllReduce,
                    "Reduce" => Coll::Reduce,
                    "ReduceScatter" => Coll::ReduceScatter,
                    _ => return None,
                };
                (coll, (RedOp::parse(op)?, DataType::parse(ty)?), rest)
            }
            _ => return None,
        };
        let (algo, proto) = match rest {
            ["RING", proto] => (Algo::Ring, self::proto(proto)?),
            ["TREE", proto] if coll == Coll::AllReduce => (Algo::Tree, self::proto(proto)?),
            _ => return None,
        };
        Some(Self::Coll(coll, op, ty, algo, proto))
    }
}

fn proto(name: &str) -> Option<Proto> {
    match name {
        "LL" => Some(Proto::Ll),
        "LL128" => Some(Proto::Ll128),
        "SIMPLE" => Some(Proto::Simple),
        _ => None,
    }
}

/// Reads `ncclDevFuncTable` of the loaded library: the functions by id.
pub(crate) fn table(image: &Image) -> Result<Vec<Function>, String> {
    let (mut table, mut names) = (None, HashMap::new());
    for symbol in image.symbols() {
        if symbol.name == "ncclDevFuncTable" {
            table = Some((symbol.addr, symbol.size));
        } else if let Some(name) = symbol.is_func.then(|| demangle(symbol.name)).flatten() {
            names.insert(symbol.addr, name.to_owned());
        }
    }
    let path = image.path.display();
    let (addr, size) = table.ok_or_else(|| format!("{path}: no symbol ncclDevFuncTable"))?;
    let mut bytes = vec![0; usize::try_from(size).map_err(|e| e.to_string())?];
    // The table is constant data that the loader has relocated.
    Addr::new(addr).copy_to(&mut bytes);
    let pointers = bytes.as_chunks::<8>().0.iter().map(|bytes| usize::from_le_bytes(*bytes));
    let functions: Vec<_> = pointers
        .map(|pointer| match names.get(&pointer) {
            Some(name) => Function::parse(name),
            None => Function::Unsupported(format!("the unnamed function at {pointer:#x}")),
        })
        .collect();
    if functions.contains(&Function::SendRecv) {
        return Ok(functions);
    }
    Err(format!("{path}: ncclDevFuncTable does not list SendRecv"))
}

/// The part after `ncclDevFunc_` of the mangled name of a function without arguments.
fn demangle(symbol: &str) -> Option<&str> {
    let digits = symbol.strip_prefix("_Z")?;
    let name = digits.trim_start_matches(|c: char| c.is_ascii_digit());
    name.strip_prefix("ncclDevFunc_")?.strip_suffix('v')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_functions() {
        let parse = |symbol| demangle(symbol).map(Function::parse);
        let all_reduce = Function::Coll(
            Coll::AllReduce,
            RedOp::PreMulSum,
            DataType::Bf16,
            Algo::Tree,
            Proto::Simple,
        );
        let gather =
            Function::Coll(Coll::AllGather, RedOp::Sum, DataType::U8, Algo::Ring, Proto::Ll);
        for (symbol, function) in [
            ("_Z47ncclDevFunc_AllReduce_PreMulSum_bf16_TREE_SIMPLEv", all_reduce),
            ("_Z29ncclDevFunc_AllGather_RING_LLv", gather),
            ("_Z20ncclDevFunc_SendRecvv", Function::SendRecv),
            ("_Z30ncclDevFunc_AllGatherV_RING_LLv", Function::AllGatherV(Proto::Ll)),
            ("_Z33ncclDevFunc_AllGatherV_RING_LL128v", Function::AllGatherV(Proto::Ll128)),
            (
                "_Z43ncclDevFunc_AllGather_COLLNET_DIRECT_SIMPLEv",
                Function::Unsupported("AllGather_COLLNET_DIRECT_SIMPLE".into()),
            ),
        ] {
            assert_eq!(parse(symbol), Some(function), "{symbol}");
        }
        assert_eq!(parse("ncclDevFuncTable"), None);
    }
}
