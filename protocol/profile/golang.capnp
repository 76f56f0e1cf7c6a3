# The two annotations that tell capnpc-go where generated code goes. The numbers
# are those of the generator's own go.capnp, which would have to be on the import
# path of everyone who decodes a file by hand; with these lines the schemas need
# nothing but themselves: capnp decode protocol/profile/profile.capnp Profile < file
@0x8f2b6a1d94c35e07;

annotation package @0xbea97f1023792be0 (file) :Text;
annotation import @0xe130b601260e44b5 (file) :Text;
