from kernelwright.codegen._generate import Generated, generate
from kernelwright.codegen._graph import CodegenError, Graph
