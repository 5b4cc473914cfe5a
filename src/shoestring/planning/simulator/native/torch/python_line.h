// The line of Python that a thread is at.
#pragma once

#include <optional>
#include <string>

namespace simulator {

struct PythonLine {
  std::string file;
  int line;
};

// The innermost line outside of PyTorch, or the innermost of all. Nothing in threads and programs without Python.
std::optional<PythonLine> python_line();

}  // namespace simulator
