// What a rehearsal has to say about its values, in FOLDER/notes.<pid>: JSON lines, each appended when it is first seen, and
// once more with its count when the process exits, so a reader takes the largest count of lines that are otherwise equal.
//   {"kind":"assumed","operator":"aten::mm","reason":"...","count":1}
//   {"kind":"read","operator":"aten::_local_scalar_dense","file":"train.py","line":12,"count":1}
#pragma once

#include <string>

namespace simulator {

// Results of the operator were assumed.
void note_assumed(const std::string& operator_name, const std::string& reason);

// The host read an assumed value, or a shape that depends on one: at the innermost line of Python outside of PyTorch.
void note_read(const std::string& operator_name);

}  // namespace simulator
