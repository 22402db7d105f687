from kernelwright.codegen._graph import CodegenError, Graph
from kernelwright.codegen._generate import Generated, generate
