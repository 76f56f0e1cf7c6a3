package server

// WithoutAttributes is o on a file system without extended attributes.
func WithoutAttributes(o Options) Options {
	o.noAttributes = true
	return o
}
